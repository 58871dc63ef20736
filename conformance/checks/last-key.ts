/** The last administration key: without it the service could not be administered any more. */
import assert from 'node:assert/strict'
import { type Check, check } from '../check.ts'
import { type Json, number, refused, success, text } from '../world.ts'

export const lastKeyChecks: readonly Check[] = [
  check(
    ['doc.lastKey', 'auth.keys'],
    'all administration keys except the last can be deleted, and the last one continues to work',
    async (world) => {
      const others: Json[] = []
      let next = 0
      do {
        const { body } = await world.call('GET', `/public-keys?next=${next}`)
        for (const { type, created, modified, ...key } of body.keys as Json[]) {
          if (type !== 'administration-key' || key.id === world.server.adminKeyId) continue
          others.push(key)
        }
        next = number(body.next)
      } while (next !== 0)
      if (others.length > 0) {
        world.later(() => world.call('PUT', '/administration-keys', { body: others }))
        for (const { id } of others) {
          success(await world.call('DELETE', `/administration-keys/${encodeURIComponent(text(id))}`))
        }
      }
      const own = `/administration-keys/${encodeURIComponent(world.server.adminKeyId)}`
      refused(await world.call('DELETE', own), 403)
      const { body } = await world.call('GET', '/public-keys')
      const left = (body.keys as Json[]).filter(({ type }) => type === 'administration-key')
      assert.deepEqual(
        left.map(({ id }) => text(id)),
        [world.server.adminKeyId],
      )
    },
    { needs: ['scratch'] },
  ),
]
