/** The sinks that the settings name. */
import { readFileSync } from 'node:fs'
import { CodedError } from '../../../protocol/errors.ts'
import { EVENT_GROUPS } from '../../../protocol/edge/events.ts'
import type { Sink } from '../../events/sink.ts'
import type { CloudSettings } from '../../settings.ts'
import { WebhookSink, parseSecrets } from './webhook.ts'

/** @throws CodedError CONFIG_INVALID, CONFIG_UNREADABLE */
export function openSinks({ webhooks, caFile }: CloudSettings['events'], now: () => number): readonly Sink[] {
  const extraCa = caFile === null ? null : read(caFile)
  return (webhooks ?? []).map(({ name, url, secret_file, token_file, types = EVENT_GROUPS }) => {
    const secrets = parseSecrets(read(secret_file), secret_file)
    const token = token_file === undefined ? null : read(token_file).trim()
    return new WebhookSink({ name, url, groups: types, secrets, token, now, proxy: process.env, extraCa })
  })
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    throw new CodedError('CONFIG_UNREADABLE', `${path} cannot be read.`, { cause })
  }
}
