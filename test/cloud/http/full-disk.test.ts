// A cloud whose disk is full.
import { expect, it, onTestFinished } from 'vitest'
import { fillDisk, smallDisk } from '../../support/mounts.ts'
import { MINUTE, openTwin } from '../harness.ts'

it('is not ready until it can write again', async ({ skip }) => {
  const path = smallDisk(skip, '16m')
  const twin = await openTwin((settings) => ({ ...settings, store: { ...settings.store, path } }))
  onTestFinished(() => twin[Symbol.asyncDispose]())
  const ready = async () => {
    const answer = await fetch(new URL('/readyz', twin.cloud.address))
    return [answer.status, ((await answer.json()) as { readonly code?: string }).code]
  }
  expect(await ready()).toEqual([200, undefined])
  const free = fillDisk(path)
  await twin.advance(MINUTE)
  expect(await ready()).toEqual([503, 'NOT_RECORDED'])
  free()
  await twin.advance(MINUTE)
  expect(await ready()).toEqual([200, undefined])
})
