// SPDX-License-Identifier: Apache-2.0

// Command openapi reads a description of an interface in OpenAPI 3.1 from standard input, and fails
// if it is not valid.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		return err
	}
	if _, err = document.BuildV3Model(); err != nil {
		return err
	}
	v, errs := validator.NewValidator(document)
	if len(errs) > 0 {
		return errs[0]
	}
	_, invalid := v.ValidateDocument()
	for _, e := range invalid {
		fmt.Fprintln(os.Stderr, e.Message, e.Reason)
		for _, s := range e.SchemaValidationErrors {
			fmt.Fprintln(os.Stderr, s.Reason, s.KeywordLocation)
		}
	}
	if len(invalid) > 0 {
		return fmt.Errorf("the description has %d faults", len(invalid))
	}
	return nil
}
