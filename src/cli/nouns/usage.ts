import { parseRepeatableJson } from '../../client/exact-json.ts'
import type { Scope } from './noun.ts'
import type { Row, Service } from './service.ts'

export async function listUsage(service: Service, { instanceId, since, until }: Scope): Promise<readonly Row[]> {
  const given = { format: 'ndjson', instanceId: instanceId ?? undefined, from: since, to: until }
  const query = Object.entries(given).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]]))
  const path = `/provisioning/api/v1.1/usage?${new URLSearchParams(query).toString()}`
  const { text } = await service.send({ method: 'GET', path })
  return text.split('\n').flatMap((line) => (line === '' ? [] : [parseRepeatableJson(line) as Row]))
}
