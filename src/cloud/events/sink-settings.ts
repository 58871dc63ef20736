import { z } from 'zod'
import { EVENT_GROUPS } from '../../protocol/edge/events.ts'

const SINKS_MAX = 20

export const NATS_SINK = 'nats'

/** Credentials belong in files, which no command shows. */
const webhookUrl = z.string().refine(
  (text) => {
    if (!URL.canParse(text) || !/^https?:\/\//.test(text)) return false
    const { username, password, hash } = new URL(text)
    return username === '' && password === '' && hash === ''
  },
  { error: 'must be a URL that begins with https:// or http://, without user name and fragment' },
)

const webhook = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z0-9][a-z0-9-]{0,62}$/)
    .refine((name) => name !== NATS_SINK, { error: 'must not be nats, the name of the sink of events.nats_url' }),
  url: webhookUrl,
  /** A file with secrets, one for each line: `whsec_` and base64. Each signs. */
  secret_file: z.string().min(1),
  token_file: z.string().min(1).optional(),
  types: z.array(z.enum(EVENT_GROUPS)).min(1).max(EVENT_GROUPS.length).optional(),
})

export const webhookSettings = z
  .array(webhook)
  .max(SINKS_MAX)
  .refine((all) => new Set(all.map(({ name }) => name)).size === all.length, { error: 'names a sink twice' })
