import fc from '../../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { PacketLimit } from '../../../../src/cloud/platform/mqtt/embedded-broker.ts'

/** What comes out, and whether it was cut off. */
async function pass(chunks: readonly Uint8Array[], bytesMax: number): Promise<{ bytes: Buffer; cut: boolean }> {
  const limit = new PacketLimit(bytesMax)
  const out: Buffer[] = []
  limit.on('data', (chunk: Buffer) => out.push(chunk))
  const ended = new Promise<boolean>((resolve) => {
    limit.once('end', () => resolve(false))
    limit.once('error', () => resolve(true))
  })
  for (const chunk of chunks) limit.write(chunk)
  limit.end()
  return { cut: await ended, bytes: Buffer.concat(out) }
}

describe('the limit on MQTT packets', () => {
  const packets = fc.array(fc.nat(8_000), { minLength: 1, maxLength: 8 })

  it('lets packets below it pass unchanged, however they are cut into chunks', async () => {
    await fc.assert(
      fc.asyncProperty(packets, fc.integer({ min: 1, max: 5_000 }), async (sizes, step) => {
        const stream = Buffer.concat(sizes.map(publish))
        const chunks = []
        for (let at = 0; at < stream.length; at += step) chunks.push(stream.subarray(at, at + step))
        const { bytes, cut } = await pass(chunks, 10_000)
        expect(cut).toBe(false)
        expect(bytes.equals(stream)).toBe(true)
      }),
      { numRuns: 50 },
    )
  })

  it('cuts at the header of a packet above it', async () => {
    expect((await pass([publish(100), publish(50_000)], 40_000)).cut).toBe(true)
  })

  it('cuts at more packets than a device can need', async () => {
    const few = Array.from({ length: 10 }, () => publish(1))
    expect((await pass(few, 100)).cut).toBe(false)
    expect((await pass([Buffer.concat(Array(101).fill(few).flat())], 100)).cut).toBe(true)
    expect((await pass(Array(7).fill(publish(10_000)), 16_000)).cut).toBe(true)
  })

  it('cuts at a length that MQTT cannot express', async () => {
    expect((await pass([Buffer.from([0x10, 0x80, 0x80, 0x80, 0x80, 0x01])], 2 ** 40)).cut).toBe(true)
  })
})

/** A PUBLISH to the topic `t` with so many bytes. */
function publish(size: number): Buffer {
  const length: number[] = []
  for (let rest = size + 3; ; rest = Math.floor(rest / 128)) {
    length.push(rest >= 128 ? (rest % 128) + 128 : rest)
    if (rest < 128) break
  }
  return Buffer.concat([Buffer.from([0x30, ...length, 0, 1, 0x74]), Buffer.alloc(size, 7)])
}
