import { expect, it } from 'vitest'
import { Service } from '../../src/cli/nouns/service.ts'
import { fakeService } from './fake-service.ts'

it('shows the first problems of a list that the cloud may have shortened, without a number of the others', async () => {
  const message = Array.from({ length: 100 }, (_, n) => `problem ${n}`)
  await using cloud = await fakeService('socket', { 'PUT /items': { status: 400, body: { message } } })
  using service = new Service({ address: `unix:${cloud.address}`, unreachable: 'SERVICE_UNREACHABLE' })
  await expect(service.send({ method: 'PUT', path: '/items', body: {} })).rejects.toThrow(
    /problem 9; and more problems$/,
  )
})
