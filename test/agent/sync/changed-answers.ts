// A cloud whose answers to segments say something else, and are signed all the same.
import { sha256, signDocument } from '../../../src/protocol/signing.ts'
import { contentOf, json } from './fake-cloud.ts'
import type { TestDevice } from './test-device.ts'

type Answer = Readonly<Record<string, unknown>>

/** Until there is another interceptor, or none. */
export function changeAnswers(device: TestDevice, change: (answer: Answer) => Answer): void {
  const { exchange, key } = device.cloud
  device.network.intercept = async (request) => {
    const response = await exchange(request)
    if (!request.url.endsWith('/sync') || response.status !== 200) return response
    const { nonce } = JSON.parse(request.body ?? '') as { nonce: string }
    const { answer } = JSON.parse(response.body) as { answer: string }
    const content = change((await contentOf(answer, key.jwk)) as Answer)
    const signed = await signDocument('sync-answer', JSON.stringify(content), key.signer)
    const about = { nonce, time: device.time.truth(), push: device.cloud.pushUrl }
    const time = JSON.stringify({ ...about, answer: sha256(signed) })
    return json(200, { answer: signed, time: await signDocument('time', time, key.signer) })
  }
}
