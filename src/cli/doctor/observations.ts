/** Inputs of the checks of `tallygate doctor`. Times are POSIX milliseconds, sizes bytes. */
import type { InspectedDatabase } from '../../agent/platform/sqlite/inspect-database.ts'
import type { Verification } from '../../agent/ledger/verify-ledger.ts'
import type { AgentSettings } from '../../agent/settings.ts'
import type { LastBackup } from '../../protocol/local/last-backup.ts'
import type { AgentStatus } from '../../protocol/local/status.ts'
import type { Choice } from './sources.ts'

export interface Problem {
  readonly code: string
  readonly message: string
  /** More exact than that of the code. */
  readonly remedy?: string
}

export interface FileObservation {
  readonly path: string
  /** `none`: does not exist. `hidden`: this user cannot look. */
  readonly kind: 'file' | 'directory' | 'socket' | 'other' | 'none' | 'hidden'
  readonly mode: number
  readonly uid: number
  readonly size: number
  readonly readable: boolean
}

export interface FileSystemObservation {
  /** Name, or number in hexadecimal. */
  readonly type: string
  readonly free: number
  readonly total: number
  /** Both 0 if the file system does not count inodes. */
  readonly inodesFree: number
  readonly inodesTotal: number
  readonly readOnly: boolean
  /** The state directory or the ledger, if it is immutable. */
  readonly immutable: string | null
}

export interface EndpointObservation {
  readonly url: string
  readonly host: string
  readonly port: number
  readonly secure: boolean
  /** Host and port of the proxy, which also resolves the name; null: direct. */
  readonly proxy: string | null
  readonly addresses: readonly string[] | Problem
  /** Time to connect in ms, or why it failed. */
  readonly connected: number | Problem
  /** Null without TLS, or without a connection. */
  readonly certificate: {
    /** Why the TLS library does not trust the chain; null if it does. */
    readonly distrust: string | null
    readonly subject: string
    readonly issuer: string
    readonly validTo: number | null
  } | null
}

export interface Observations {
  readonly now: number
  readonly version: string
  readonly node: { readonly version: string; readonly oldestMajor: number }
  readonly sqlite: string
  readonly timeZone: { readonly name: string; readonly rules: boolean }
  readonly configuration: {
    readonly file: string | null
    readonly choice: Choice
    /** Socket in the settings if a different one is checked; null if it is the same. */
    readonly otherSocket: string | null
    readonly problem: Problem | null
    /** The settings file and every file with a secret. */
    readonly files: readonly FileObservation[]
    /** Paths that the settings of this machine name, whichever agent is checked. */
    readonly filesOfMachine: readonly string[]
  }
  /** Defaults if the configuration is invalid. */
  readonly settings: AgentSettings
  readonly directory: FileObservation
  readonly fileSystem: FileSystemObservation | Problem
  /** Of the reserve directory; null if write-behind is off. */
  readonly reserveFileSystem: FileSystemObservation | Problem | null
  readonly diskReserve: FileObservation
  readonly key: FileObservation & { readonly problem: Problem | null; readonly keyId: string | null } & {
    readonly nextKeyId: string | null
  }
  readonly enrollmentToken: FileObservation
  readonly database: FileObservation
  readonly log: FileObservation
  readonly inspected: InspectedDatabase
  readonly verification: Verification | Problem
  readonly backup: LastBackup | null
  readonly isBackupThere: boolean
  readonly socket: FileObservation
  /** Whether the agent, or a service manager for it, listens on the socket. Null: unknown. */
  readonly isListened: boolean | null
  readonly agent: AgentStatus | Problem
  readonly agents: readonly { readonly pid: number; readonly user: string; readonly command: string }[]
  readonly memory: {
    readonly total: number | null
    readonly available: number | null
    /** Of the control group; null if there is none. */
    readonly limit: number | null
    readonly used: number | null
  }
  /** Most files and connections that the process of the agent may have open. Null: unknown. */
  readonly openFilesMax: number | null
  /** Null if the device is not enrolled yet. */
  readonly cloud: EndpointObservation | null
  readonly broker: EndpointObservation | null
  /** Null if it could not be tested. */
  readonly signIn:
    | {
        readonly status: number
        readonly code: string | null
        /** Message of the cloud; null if its response has another form. */
        readonly words: string | null
        /** The cloud's clock, unsigned; null if unknown. */
        readonly date: number | null
        readonly twinVersion: string | null
      }
    | Problem
    | null
}

export function isProblem(value: unknown): value is Problem {
  return typeof value === 'object' && value !== null && 'code' in value && 'message' in value
}

/** Whether the agent is checking its ledger before it serves requests. */
export function isStarting(agent: Observations['agent']): agent is Problem & { readonly code: 'AGENT_STARTING' } {
  return isProblem(agent) && agent.code === 'AGENT_STARTING'
}
