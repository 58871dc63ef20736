/** An order of a technician at the agent's socket: the device shall replace its key. */
import { z } from 'zod'
import { thumbprintText } from '../edge/device-key.ts'

/** `POST` on the agent's socket, for those who may administer; without a body. */
export const AGENT_ROTATE_KEY_PATH = '/tallygate/v1/rotate-key'

/** The answer: the order would survive a power cut. Thumbprints of the key in use, and of the one that shall follow it. */
export const keyRotation = z.strictObject({ key: thumbprintText, next: thumbprintText })
