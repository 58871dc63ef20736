/**
 * Starts the next epoch of a device. The cloud fences the previous epoch and stores its answer under the nonce. The
 * device accepts only an answer with its current nonce and an epoch above all earlier ones.
 */
import { z } from 'zod'
import { hashText } from '../signing.ts'
import { uuid } from '../wire.ts'

export const attachRequest = z
  .strictObject({
    nonce: z.string().min(16).max(64),
    bootId: z.string().max(64),
    /** Highest epoch the device ever had; a restored cloud may know fewer. */
    above: z.int().min(0),
    /** Last acknowledged segment of that epoch; 0: none, or a different one remains. */
    acknowledged: z.int().min(0),
    backlog: z.int().min(0),
    software: z.string().max(64),
  })
  .meta({ id: 'AttachRequest' })

/** Payload of the JWS of kind `attach-answer`. */
export const attachAnswer = z.strictObject({
  deviceId: uuid,
  nonce: z.string(),
  epoch: z.int().min(1),
  /**
   * The cloud was restored and may lack acknowledged segments: the end of what it has of the device's highest epoch. The
   * device sends the kept segments of all earlier epochs again. Null: the cloud lacks nothing.
   */
  restored: z.strictObject({ lastEntry: z.int().min(0), entryHead: hashText }).nullable(),
})
