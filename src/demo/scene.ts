import { setTimeout as sleep } from 'node:timers/promises'
import type { HttpClient } from '../client/http.ts'
import { CodedError } from '../protocol/errors.ts'
import type { Presenter } from './presenter.ts'

export interface Scene {
  readonly socketPath: string
  readonly instanceId: string
  readonly technician: HttpClient
  readonly administrator: HttpClient
  readonly presenter: Presenter
  readonly signal: AbortSignal
}

const WITHIN_MS = 15_000
const LOOK_EVERY_MS = 20

/** Polls until the condition is met. @throws CodedError DEMO_FAILED after 15 s */
export async function expectThat(what: string, isSo: () => Promise<boolean>, { signal }: Scene): Promise<void> {
  const deadline = performance.now() + WITHIN_MS
  while (performance.now() < deadline) {
    signal.throwIfAborted()
    if (await isSo()) return
    await sleep(LOOK_EVERY_MS)
  }
  throw new CodedError('DEMO_FAILED', `Waited ${WITHIN_MS / 1000} s without success until ${what}.`)
}
