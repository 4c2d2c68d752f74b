// SPDX-License-Identifier: Apache-2.0

// Command openapi reads a description of an interface in OpenAPI 3.1 from standard input, and fails
// if it is not valid: if the JSON Schema of OpenAPI 3.1 refuses the description, or if one of its schemas
// is not one of JSON Schema 2020-12, or refers to nothing.
package main

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/pb33f/jsonschema/v6"
	"github.com/pb33f/libopenapi/datamodel"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	document, err := jsonschema.UnmarshalJSON(os.Stdin)
	if err != nil {
		return err
	}
	openapi, err := jsonschema.UnmarshalJSON(strings.NewReader(datamodel.OpenAPI31SchemaData))
	if err != nil {
		return err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	for name, resource := range map[string]any{"openapi.json": openapi, "document.json": document} {
		if err = c.AddResource(name, resource); err != nil {
			return err
		}
	}
	schema, err := c.Compile("openapi.json")
	if err != nil {
		return err
	}
	if err = schema.Validate(document); err != nil {
		return err
	}
	return schemas(c, document, "document.json#")
}

// schemas compiles each schema in value, which is at place. A schema that refers to nothing cannot
// be compiled.
func schemas(c *jsonschema.Compiler, value any, place string) error {
	members, ok := value.(map[string]any)
	if items, isArray := value.([]any); isArray {
		members, ok = map[string]any{}, true
		for i, item := range items {
			members[strconv.Itoa(i)] = item
		}
	}
	if !ok {
		return nil
	}
	for name, member := range members {
		inside := place + "/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
		if name == "schema" || strings.HasSuffix(place, "/components/schemas") {
			if _, err := c.Compile(inside); err != nil {
				return err
			}
		}
		if err := schemas(c, member, inside); err != nil {
			return err
		}
	}
	return nil
}
