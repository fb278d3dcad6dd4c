// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

// These are used by tests of package validate_test and of package validate.
var (
	Definitions = definitions
	SetDefaults = setDefaults
	CopyJSON    = copyJSON
)

// Judge returns the faults that the definition finds in a spec.
func (d *definition) Judge(spec any) []string { return d.judge(spec) }

// Schema returns the schema of the spec.
func (d *definition) Schema() map[string]any { return d.schema }
