import { readAuthorityFile, readSettingFile } from '../../../platform/read-setting-file.ts'
import { EVENT_GROUPS } from '../../../protocol/edge/events.ts'
import type { Sink } from '../../events/sink.ts'
import type { CloudSettings } from '../../settings.ts'
import { WebhookSink, parseSecrets } from './webhook.ts'

/** @throws CodedError CONFIG_INVALID, CONFIG_UNREADABLE */
export async function openSinks(settings: CloudSettings['events'], now: () => number): Promise<readonly Sink[]> {
  const { webhooks, caFile } = settings
  const extraCa = caFile === null ? null : readAuthorityFile('events.ca_file', caFile)
  const sinks = (webhooks ?? []).map(({ name, url, secret_file, token_file, types = EVENT_GROUPS }) => {
    const secrets = parseSecrets(readSettingFile('events.webhooks', secret_file), secret_file)
    const token = token_file === undefined ? null : readSettingFile('events.webhooks', token_file).trim()
    return new WebhookSink({ name, url, groups: types, secrets, token, now, proxy: process.env, extraCa })
  })
  return [...sinks, ...(await natsSinks(settings, extraCa))]
}

async function natsSinks(settings: CloudSettings['events'], extraCa: string | null): Promise<readonly Sink[]> {
  const { natsUrl: url, natsSubject: subject, natsTypes: groups, natsUsername: username } = settings
  if (url === null) return []
  // The client of NATS takes 16 MB of memory.
  const { NatsSink } = await import('./nats.ts')
  const secrets = {
    password: settings.natsPassword?.reveal() ?? null,
    credentials: settings.natsCredentials?.reveal() ?? null,
  }
  return [new NatsSink({ url, subject, groups, username, ...secrets, extraCa })]
}
