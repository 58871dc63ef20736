/**
 * Schemas as JSON Schema, from the side of the wire: what a schema takes in, before anything is made of it. A schema with
 * an id becomes a component, whatever refers to it. A schema that JSON Schema cannot say by itself carries what it takes
 * in its metadata, as `wire`.
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

  /** @throws Error when two schemas with one id differ */
  render(schema: z.ZodType): JsonSchema {
    // Inside another one, also a schema that has an id becomes a definition.
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

/** With references to components, and with what schemas say of themselves in the place of what was found. */
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

/** A property that must not be there is one that the schema does not have. */
function withoutForbidden(properties: Json): Json {
  return Object.fromEntries(
    Object.entries(properties as JsonSchema).filter(([, schema]) => JSON.stringify(schema) !== '{"not":{}}'),
  )
}
