// SPDX-License-Identifier: Apache-2.0

// Package docs has the documents that programs show to their users.
package docs

import _ "embed" // for errors.md

//go:embed errors.md
var errors string

// Errors returns docs/errors.md, which explains every error that yodel itself returns. Each section
// begins with a line such as "## YDL1103: the server could not be reached".
func Errors() string { return errors }
