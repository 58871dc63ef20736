/** Reassembles HTTP messages from the TCP writes of a traced process. */
import { gunzipSync } from 'node:zlib'
import { type Moment, quotedBytes, type SystemCall, targetOf } from '../trace/calls.ts'

export interface SentMessage {
  readonly start: string
  readonly body: string
  readonly at: number
}

const HEAD_END = '\r\n\r\n'

/** Sent bytes of an incomplete message. */
interface Stream {
  bytes: Buffer
  /** Moment at which the first of them could leave. */
  at: number
}

export class SentMessages {
  readonly all: SentMessage[] = []
  readonly #streams = new Map<string, Stream>()
  readonly #begun = new Map<SystemCall, number>()

  take(moment: Moment, number: number): void {
    const { call } = moment
    if (!/^(write|writev|sendto|sendmsg)$/.test(call.name)) return
    const target = targetOf(call)
    if (!target.startsWith('TCP')) return
    if (moment.kind === 'begin') {
      this.#begun.set(call, number)
      return
    }
    const at = this.#begun.get(call) ?? number
    this.#begun.delete(call)
    if (moment.result === null || moment.result <= 0) return
    const bytes = sentBytes(call).subarray(0, moment.result)
    const stream = this.#streams.get(target) ?? { bytes: Buffer.alloc(0), at }
    if (stream.bytes.length === 0) stream.at = at
    stream.bytes = Buffer.concat([stream.bytes, bytes])
    this.#streams.set(target, stream)
    while (this.#takeMessage(stream, at));
  }

  #takeMessage(stream: Stream, at: number): boolean {
    const end = stream.bytes.indexOf(HEAD_END)
    if (end < 0) return false
    const head = stream.bytes.toString('latin1', 0, end)
    const length = Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0)
    const bodyStart = end + HEAD_END.length
    if (stream.bytes.length < bodyStart + length) return false
    const body = stream.bytes.subarray(bodyStart, bodyStart + length)
    const isPacked = /\r\ncontent-encoding: *gzip/i.test(head)
    const [start = ''] = head.split('\r\n')
    this.all.push({ start, body: (isPacked ? gunzipSync(body) : body).toString('utf8'), at: stream.at })
    stream.bytes = stream.bytes.subarray(bodyStart + length)
    stream.at = at
    return stream.bytes.length > 0
  }
}

function sentBytes({ name, args }: SystemCall): Buffer {
  if (name === 'write' || name === 'sendto') return quotedBytes(args, args.indexOf('>, "') + '>, '.length).bytes
  const pieces: Buffer[] = []
  for (let from = args.indexOf('iov_base="'); from >= 0;) {
    const { bytes, end } = quotedBytes(args, from + 'iov_base='.length)
    pieces.push(bytes)
    from = args.indexOf('iov_base="', end)
  }
  return Buffer.concat(pieces)
}
