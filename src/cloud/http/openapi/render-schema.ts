/**
 * Renders the input side of schemas as JSON Schema. Schemas with an id become components. Metadata `wire` describes
 * schemas that JSON Schema cannot express.
 */
import { z } from 'zod'

export type Json = null | boolean | number | string | readonly Json[] | JsonSchema
export interface JsonSchema {
  readonly [key: string]: Json
}

const DEFINITIONS = '#/$defs/'
export const COMPONENTS = '#/components/schemas/'

export class Components {
  readonly schemas = new Map<string, JsonSchema>()

  /** @throws Error if two schemas with one id differ */
  render(schema: z.ZodType): JsonSchema {
    // Nested, so that a root schema with an id becomes a definition too.
    const rendered = z.toJSONSchema(z.strictObject({ root: schema }), { io: 'input', unrepresentable: 'any' })
    const { properties, $defs = {} } = tidy(JSON.parse(JSON.stringify(rendered)) as Json) as {
      readonly properties: { readonly root?: JsonSchema }
      readonly $defs?: Readonly<Record<string, JsonSchema>>
    }
    for (const [id, definition] of Object.entries($defs)) this.#add(id, definition)
    if (properties.root === undefined) throw new Error('invariant: a property that was given is rendered')
    return properties.root
  }

  #add(id: string, definition: JsonSchema): void {
    const known = this.schemas.get(id)
    if (known !== undefined && JSON.stringify(known) !== JSON.stringify(definition)) {
      throw new Error(`invariant: two schemas are called ${id}`)
    }
    this.schemas.set(id, definition)
  }
}

/** Rewrites references to components and applies `wire` metadata. */
function tidy(value: Json): Json {
  if (Array.isArray(value)) return value.map((element: Json) => tidy(element))
  if (typeof value !== 'object' || value === null) return value
  const { wire, id, ...rest } = value as JsonSchema
  if (wire !== undefined) {
    return { ...(wire as JsonSchema), ...('description' in rest ? { description: rest['description'] ?? '' } : {}) }
  }
  const kept = typeof id === 'string' ? rest : (value as JsonSchema)
  return Object.fromEntries(
    Object.entries(kept)
      .filter(([key]) => key !== '$schema')
      .map(([key, inner]) => {
        if (key === '$ref' && typeof inner === 'string') return [key, inner.replace(DEFINITIONS, COMPONENTS)]
        if (key === 'properties') return [key, withoutForbidden(tidy(inner))]
        return [key, tidy(inner)]
      }),
  )
}

/** Omits forbidden properties. */
function withoutForbidden(properties: Json): Json {
  return Object.fromEntries(
    Object.entries(properties as JsonSchema).filter(([, schema]) => JSON.stringify(schema) !== '{"not":{}}'),
  )
}
