// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

// What the tests of package validate_test share with those in the package.
var (
	Definitions = definitions
	SetDefaults = setDefaults
	CopyJSON    = copyJSON
)

// Judge returns the verdict of the definition on a spec.
func (d *definition) Judge(spec any) []string { return d.judge(spec) }

// Schema returns the schema of the spec.
func (d *definition) Schema() map[string]any { return d.schema }
