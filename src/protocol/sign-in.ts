/** Sign-in of administrators by OpenID Connect: what the cloud tells a program, and the rules that map claims to roles. */
import { z } from 'zod'
import { ROLES } from './service/keys.ts'
import { uuidInLowerCase } from './wire.ts'

export const SIGN_IN_PATH = '/edge/api/v1/sign-in'

export const signInOptions = z.strictObject({
  /** Of the OpenID Connect provider. */
  issuer: z.string(),
  /** Of a public client without a secret. */
  clientId: z.string(),
  scopes: z.string(),
  /** The cloud accepts an ID token at most this long after its issue. */
  maxTokenAgeMs: z.int().min(0),
})
export type SignInOptionsWire = z.infer<typeof signInOptions>

/** Text of another service without characters that change how a terminal or a page shows the text around it. */
export function printable(text: string, max = 1_000): string {
  return Array.from(text.toWellFormed().replaceAll(/[\p{C}\p{Zl}\p{Zp}]/gu, ''))
    .slice(0, max)
    .join('')
    .trim()
}

const RULES_MAX = 1_000
const INSTANCES_MAX = 100

const accessRule = z
  .strictObject({
    /** Of the claim. */
    value: z.string().min(1).max(1_000),
    roles: z.array(z.enum(ROLES)).min(1).max(ROLES.length),
    instances: z.array(uuidInLowerCase).min(1).max(INSTANCES_MAX).optional(),
  })
  .refine(({ roles, instances }) => instances === undefined || !roles.includes('keys'), {
    error: 'the role keys cannot be limited to instances',
  })
export type AccessRule = z.infer<typeof accessRule>

export const accessRules = z.array(accessRule).min(1).max(RULES_MAX)
