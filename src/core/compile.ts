import type { Policy } from './policy.ts'

export interface CompiledPolicy {
  readonly policy: Policy
}
export declare function compilePolicy(policy: Policy): CompiledPolicy
