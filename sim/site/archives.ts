/** The cloud archives its usage at random times. Archives outlive the cloud and its backups. */
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { CodedError } from '../../src/protocol/errors.ts'
import { archiveUsage } from '../../src/cloud/usage/archive/archive-usage.ts'
import type { ArchivePlace } from '../../src/cloud/usage/archive/place.ts'
import type { ArchivedFiles } from '../audit/shared-state.ts'
import { BEGIN, type Happening } from '../plan.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import type { Stage } from './stage.ts'

/** After a run that ended with its process, and where a restored cloud lacks what an archive contains. */
const EXPECTED = ['ARCHIVE_IN_USE', 'ARCHIVE_DIFFERS'] as const

export class Archives {
  readonly #stage: Stage
  #runs = 0
  #places = 1

  constructor(stage: Stage) {
    this.#stage = stage
  }

  run({ pieceMs = 0 }: Extract<Happening, { kind: 'archive' }>): void {
    this.#stage.fault(pieceMs === 0 ? 'archive' : 'slow archive')
    this.#runs += 1
    const holder = `run ${this.#runs}`
    this.#stage.byTwinOrRefused(EXPECTED, async (twin) => {
      const { store, now } = twin
      const deps = {
        ...{ store, now, holder, place: this.#place(), tenantId: 't' },
        compression: {
          compress: async (text: string) => zstdCompressSync(text),
          decompress: async (body: Buffer) => zstdDecompressSync(body).toString(),
        },
        giveWay: () => this.#pause(twin, pieceMs),
        isStopping: () => false,
        onArchive: () => undefined,
        // Several archives and files in a run.
        limits: { records: 20, characters: 4_000, piece: 5 },
      }
      try {
        await archiveUsage(deps, now())
      } catch (error) {
        // A restored cloud has lost what an archive contains: the administrator gives it an empty place.
        if (error instanceof CodedError && error.code === 'ARCHIVE_DIFFERS') this.#places += 1
        throw error
      }
    })
  }

  /** Does not end if the process of the cloud ends meanwhile. */
  #pause(twin: TwinProcess, ms: number): Promise<void> | undefined {
    const { time, plan } = this.#stage
    if (ms === 0 || time.now >= BEGIN + plan.faultsMs) return undefined
    return new Promise((resolve) => {
      time.at(time.now + ms, () => {
        if (twin.alive) resolve()
      })
    })
  }

  #place(): ArchivePlace {
    const name = `place ${this.#places}`
    const { archives } = this.#stage.auditor.shared
    const files: ArchivedFiles = archives.get(name) ?? new Map<string, Buffer>()
    archives.set(name, files)
    return {
      name,
      list: async () => [...files.keys()],
      get: async (file) => files.get(file) ?? null,
      create: async (file, body) => {
        const isNew = !files.has(file)
        if (isNew) files.set(file, body)
        return isNew
      },
    }
  }
}
