/**
 * A device without an incarnation gets the next one. The cloud fences the one before and stores its answer under the
 * nonce; the device takes an answer only for the nonce that it holds in memory and an incarnation above all it ever had.
 */
import { z } from 'zod'
import { hashText } from '../signing.ts'
import { uuid } from '../wire.ts'

export const attachRequest = z
  .strictObject({
    nonce: z.string().min(16).max(64),
    bootId: z.string().max(64),
    /** The highest incarnation that this device ever had: a cloud that was restored from a backup may know of fewer. */
    above: z.int().min(0),
    /** The last segment of that incarnation which the cloud has acknowledged; 0: none, or it is not the one that is left. */
    acknowledged: z.int().min(0),
    /** Versions of the software, for the administrator. */
    software: z.string().max(64),
  })
  .meta({ id: 'AttachRequest' })

/** Payload of the JWS of kind `attach-answer`. */
export const attachAnswer = z.strictObject({
  deviceId: uuid,
  nonce: z.string(),
  incarnation: z.int().min(1),
  /**
   * How far the cloud has the incarnation that the device named as its highest: a cloud that was restored may have less than it
   * acknowledged. Null: the device named none.
   */
  before: z.strictObject({ seq: z.int().min(0), lastEntry: z.int().min(0), entryHead: hashText }).nullable(),
})
