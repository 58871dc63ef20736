// Does what the lines of its standard input say, with the client for Node. See ../driver.ts.
import { createInterface } from 'node:readline'
import { type Answer, type Session, SessionEnded, TallygateError, connect } from '../../../sdk/node/src/index.ts'

const INSTANCE = process.env['INSTANCE'] ?? ''
const agent = connect({ patienceMs: Number(process.env['PATIENCE_MS']) })
let session: Session | undefined

const say = (...words: readonly unknown[]): void => void process.stdout.write(`${words.join(' ')}\n`)

function sayAnswer({ granted, items: [item], advice }: Answer): void {
  say(granted ? 'granted' : 'refused', item?.code ?? '-', item?.tokensCharged ?? 0, item?.retry ?? '-', advice ?? '')
}

function open(): Session {
  if (session === undefined) throw new Error('no session is open')
  return session
}

const commands: Readonly<Record<string, (...words: string[]) => Promise<void>>> = {
  async access(value = '', version = '', count = '', times = '1') {
    for (let n = 0; n < Number(times); n += 1) {
      sayAnswer(
        await agent.access(INSTANCE, { type: 'user', value }, [{ item: 'LaserCut', version, count: Number(count) }]),
      )
    }
  },
  async burst(times = '') {
    const cut = { item: 'LaserCut', version: '1.0', count: 1 }
    const all = Array.from({ length: Number(times) }, (_, n) =>
      agent.access(INSTANCE, { type: 'user', value: `anna-${n}` }, [cut]),
    )
    say('granted', (await Promise.all(all)).filter(({ granted }) => granted).length)
  },
  async offers() {
    const { instances } = await agent.offers()
    for (const { item, version, lineItems } of instances[0]?.items ?? [])
      say('offer', item, version, lineItems[0]?.rate, instances[0]?.name)
  },
  async open(how) {
    session = await agent.openSession({ instanceId: INSTANCE, bound: how === 'bound' })
    say('opened', session.id)
  },
  async request(value = '', count = '') {
    sayAnswer(
      await open().request({ type: 'user', value }, [{ item: 'LaserCut', version: '1.0', count: Number(count) }]),
    )
  },
  async state() {
    say('state', await open().state())
  },
  async wait() {
    const { signal } = open()
    if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
    say('ended', (signal.reason as SessionEnded).state)
  },
  async close(how) {
    await Promise.all(how === 'twice' ? [open().close(), open().close()] : [open().close()])
    say('closed')
  },
  async end() {
    const { signal } = open()
    say('end', signal.aborted ? (signal.reason as SessionEnded).state : '-')
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name = '', ...words] = line.split(' ')
  try {
    await commands[name]?.(...words)
  } catch (error) {
    if (!(error instanceof TallygateError)) throw error
    const { name, code, retry, message } = error
    say(
      'error',
      name,
      code,
      retry,
      ...['connections', 'TALLYGATE_SOCKET', 'sign in'].filter((word) => message.includes(word)),
    )
  }
  say('done')
}
process.exit()
