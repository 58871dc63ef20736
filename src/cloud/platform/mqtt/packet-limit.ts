/** Closes a connection that announces a packet above the limit, before buffering it. */
import { Transform, type TransformCallback } from 'node:stream'
import { PacketMeter } from '../../../protocol/mqtt-framing.ts'

export class PacketLimit extends Transform {
  readonly #meter: PacketMeter

  constructor(bytesMax: number) {
    super()
    this.#meter = new PacketMeter(bytesMax)
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    if (this.#meter.take(chunk)) done(null, chunk)
    else done(new Error('an MQTT packet is larger than the limit'))
  }
}
