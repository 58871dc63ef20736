import { describe, expect, it } from 'vitest'
import { Shutdown } from '../../src/platform/shutdown.ts'
import { CodedError } from '../../src/protocol/errors.ts'

function shutdownWithLog() {
  const messages: string[] = []
  return { messages, shutdown: new Shutdown({ error: (_fields, message) => void messages.push(message) }) }
}

describe('a shutdown', () => {
  it('ends the service once, whatever asks for it', async () => {
    const { shutdown } = shutdownWithLog()
    let ends = 0
    shutdown.begin(async (hasFailed) => {
      expect(hasFailed).toBe(false)
      ends += 1
    })
    await Promise.all([shutdown.stop(), shutdown.stop()])
    await shutdown.ended
    expect(ends).toBe(1)
  })

  it('ends the service after a failure, and rejects with its code', async () => {
    const { shutdown } = shutdownWithLog()
    const ends: boolean[] = []
    shutdown.begin(async (hasFailed) => void ends.push(hasFailed))
    shutdown.fail(new Error('wrapped', { cause: new CodedError('STATE_UNWRITABLE', 'full') }))
    shutdown.fail(new Error('a consequence'))
    await expect(shutdown.ended).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
    expect(ends).toEqual([true])
  })

  it('ends a service that failed before everything ran', async () => {
    const { shutdown } = shutdownWithLog()
    shutdown.fail(new Error('during the start'))
    const ends: boolean[] = []
    shutdown.begin(async (hasFailed) => void ends.push(hasFailed))
    await expect(shutdown.ended).rejects.toMatchObject({ code: 'INTERNAL', message: 'during the start' })
    expect(ends).toEqual([true])
  })

  it('rejects if the service fails while it stops', async () => {
    const { shutdown } = shutdownWithLog()
    shutdown.begin(async () => shutdown.fail(new CodedError('STATE_UNWRITABLE', 'full')))
    await shutdown.stop()
    await expect(shutdown.ended).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
  })

  it('logs an error of the stop, and has ended', async () => {
    const { shutdown, messages } = shutdownWithLog()
    shutdown.begin(() => Promise.reject(new Error('no answer')))
    await shutdown.stop()
    await shutdown.ended
    expect(messages).toEqual(['an error occurred during the stop'])
  })
})
