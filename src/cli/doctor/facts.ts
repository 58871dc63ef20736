/**
 * Everything that the checks of `tallygate doctor` look at, as plain data: gathered first, judged afterwards. Times are POSIX
 * milliseconds, sizes bytes.
 */
import type { InspectedDatabase } from '../../agent/adapters/sqlite/inspect-database.ts'
import type { Verification } from '../../agent/app/verify-ledger.ts'
import type { AgentSettings } from '../../agent/settings.ts'
import type { LastBackup } from '../../protocol/local/last-backup.ts'
import type { AgentStatus } from '../../protocol/local/status.ts'
import type { Choice } from './sources.ts'

export interface Problem {
  readonly code: string
  readonly message: string
}

export interface FileFacts {
  readonly path: string
  /** `none`: there is nothing there; `hidden`: this user may not look. */
  readonly kind: 'file' | 'directory' | 'socket' | 'other' | 'none' | 'hidden'
  /** Permission bits. */
  readonly mode: number
  readonly uid: number
  readonly size: number
  /** This user may read it. */
  readonly readable: boolean
}

export interface FileSystemFacts {
  /** By its name, or its number in hexadecimal. */
  readonly type: string
  readonly free: number
  readonly total: number
  /** 0 of 0 where the file system does not count them. */
  readonly inodesFree: number
  readonly inodesTotal: number
}

export interface EndpointFacts {
  readonly url: string
  readonly host: string
  readonly port: number
  readonly secure: boolean
  /** Addresses of the host; a problem instead where it has none. */
  readonly addresses: readonly string[] | Problem
  /** How long it took to connect, ms; a problem instead where nobody listened. */
  readonly connected: number | Problem
  /** Null without TLS, or without a connection. */
  readonly certificate: {
    /** What is wrong with the chain, in the words of the TLS library; null when it is trusted. */
    readonly distrust: string | null
    readonly subject: string
    readonly issuer: string
    readonly validTo: number | null
  } | null
}

export interface DoctorFacts {
  readonly now: number
  readonly version: string
  readonly node: { readonly version: string; readonly oldestMajor: number }
  readonly sqlite: string
  readonly uid: number
  readonly timeZone: { readonly name: string; readonly rules: boolean }
  readonly configuration: {
    readonly file: string | null
    /** Which agent is asked, and why that one. */
    readonly choice: Choice
    /** The socket that they name, where another one is asked; null: it is the same. */
    readonly otherSocket: string | null
    readonly problem: Problem | null
    /** The settings file and every file that holds a secret. */
    readonly files: readonly FileFacts[]
  }
  /** Defaults where the configuration cannot be used. */
  readonly settings: AgentSettings
  readonly directory: FileFacts
  readonly fileSystem: FileSystemFacts | Problem
  /** Of the reserve directory; null where nothing is reserved ahead. */
  readonly reserveFileSystem: FileSystemFacts | Problem | null
  readonly slack: FileFacts
  readonly key: FileFacts & { readonly problem: Problem | null; readonly keyId: string | null } & {
    /** Of the key that shall follow; null: none is there. */
    readonly nextKeyId: string | null
  }
  readonly database: FileFacts
  readonly log: FileFacts
  readonly inspected: InspectedDatabase
  readonly verification: Verification | Problem
  /** The last one that was noted beside the database; null: none is known. */
  readonly backup: LastBackup | null
  /** Whether its file is where it was put. */
  readonly isBackupThere: boolean
  readonly socket: FileFacts
  /** Whether somebody listens behind the socket: the agent, or a service manager for it. Null: it cannot be said. */
  readonly isListened: boolean | null
  readonly agent: AgentStatus | Problem
  /** Of all processes that run an agent. */
  readonly agents: readonly { readonly pid: number; readonly user: string; readonly command: string }[]
  readonly memory: {
    readonly total: number | null
    readonly available: number | null
    /** Of the control group; null: none. */
    readonly limit: number | null
    readonly used: number | null
  }
  /** Null: the device does not know its cloud yet. */
  readonly cloud: EndpointFacts | null
  readonly broker: EndpointFacts | null
  /** Null: it could not be tried. */
  readonly signIn:
    | {
        readonly status: number
        readonly code: string | null
        /** In the words of the cloud; null where it answers otherwise. */
        readonly words: string | null
        /** Clock of the cloud, unsigned; null where it does not tell. */
        readonly date: number | null
        readonly twinVersion: string | null
      }
    | Problem
    | null
}

export function isProblem(value: unknown): value is Problem {
  return typeof value === 'object' && value !== null && 'code' in value && 'message' in value
}
