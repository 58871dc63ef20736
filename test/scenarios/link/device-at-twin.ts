// A device of the tests at a real twin: real HTTP between them, and only time in the hands of the test.
import { onTestFinished } from 'vitest'
import { EXCHANGE_DEFAULTS, createExchange } from '../../../src/agent/platform/http/exchange.ts'
import { MQTT_DEFAULTS, type MqttPushOptions, createMqttPush } from '../../../src/agent/platform/mqtt/mqtt-push.ts'
import type { Push } from '../../../src/agent/sync/push.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import type { Twin } from '../../cloud/harness.ts'
import { TestDevice } from '../../agent/sync/test-device.ts'

const NO_NOTIFICATIONS: Push = {
  run: async (_order, signal) => new Promise((resolve) => signal.addEventListener('abort', () => resolve())),
}

/** A device with a token to enroll, before its first start. It charges `ACT-1`, and stops when the test is over. */
export async function deviceAt(twin: Twin, instanceId: string, push: Push = NO_NOTIFICATIONS): Promise<TestDevice> {
  const { exchange, close } = createExchange(EXCHANGE_DEFAULTS)
  const device = await TestDevice.at({
    exchange,
    push,
    begin: twin.now,
    token: await twin.enrollmentToken(instanceId),
    charged: { instanceId, lineItemId: 'ACT-1', account: lineAccount(instanceId, 'ACT-1', 0) },
  })
  onTestFinished(async () => {
    const stopped = device.link.stop()
    await device.settle()
    await stopped
    close()
  })
  return device
}

/** Change notifications over MQTT. A connection that is cut is not tried again: the test would not know when. */
export function notificationsOnce(changes: Partial<MqttPushOptions> = {}): Push {
  return createMqttPush({
    extraCa: null,
    ...MQTT_DEFAULTS,
    pause: async (_ms, signal) =>
      signal.aborted ? undefined : new Promise((resolve) => signal.addEventListener('abort', () => resolve())),
    fraction: () => 0,
    now: () => performance.now(),
    ...changes,
  })
}
