import { once } from 'node:events'
import { connect } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { WebSocket } from 'ws'
import { openTwin } from '../harness.ts'

it('a WebSocket with two Host headers is refused as a request', async () => {
  await using twin = await openTwin()
  const { hostname, port } = new URL(twin.cloud.address)
  const socket = connect(Number(port), hostname)
  onTestFinished(() => void socket.destroy())
  const upgrade = 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: mqtt\r\n'
  const key = `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${'A'.repeat(22)}==\r\n`
  const { pathname } = new URL(`${twin.cloud.address}/push`)
  socket.write(`GET ${pathname} HTTP/1.1\r\nHost: x\r\nHost: x\r\n${upgrade}${key}\r\n`)
  const [said] = (await once(socket, 'data')) as [Buffer]
  expect(String(said)).toMatch(/^HTTP\/1.1 400 [^]*"code":"BAD_REQUEST"/)
})

it('a WebSocket sends nothing into the requests of other connections', async () => {
  await using twin = await openTwin()
  const { hostname, port } = new URL(twin.cloud.address)
  const channel = new WebSocket(`${twin.cloud.address.replace('http', 'ws')}/push`, ['mqtt'])
  await once(channel, 'open')
  const socket = connect(Number(port), hostname)
  onTestFinished(() => void socket.destroy())
  const request = 'GET /healthz HTTP/1.1\r\nHost: x\r\n'
  socket.write(request)
  await twin.call('GET', '/provisioning/api/v1.1/instances')
  channel.send('this is no MQTT')
  await once(channel, 'close')
  socket.write('\r\n')
  const [said] = (await once(socket, 'data')) as [Buffer]
  expect(String(said)).toMatch(/^HTTP\/1.1 200 /)
})
