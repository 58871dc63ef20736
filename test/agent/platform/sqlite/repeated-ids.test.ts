// Shorter records come back exactly, whatever they contain.
import { randomUUID } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import fc from '../../../support/fast-check.ts'
import { restoreIds, shortenIds } from '../../../../src/agent/platform/sqlite/repeated-ids.ts'

const restored = (text: string): string => restoreIds(shortenIds(Buffer.from(text))).toString()

describe('ids that come again', () => {
  it('are one byte each', () => {
    const id = randomUUID()
    expect(shortenIds(Buffer.from(`{"a":"${id}","b":"line/${id}/0"}`))).toHaveLength(
      `{"a":"${id}","b":"line/?/0"}`.length,
    )
  })

  it('come back, with any text around them and more ids than there are codes', () => {
    const few = Array.from({ length: 30 }, () => randomUUID())
    const part = fc.oneof(
      fc.constantFrom(...few),
      fc.uuid(),
      fc.string({ unit: 'grapheme' }).map((text) => JSON.stringify(text)),
    )
    fc.assert(
      fc.property(fc.array(part, { maxLength: 80 }), (parts) => {
        expect(restored(parts.join('/'))).toBe(parts.join('/'))
      }),
    )
  })

  it('are damaged if one stands for nothing', () => {
    expect(() => restoreIds(Buffer.from('\u000e'))).toThrow('damaged')
  })
})
