// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"slices"
	"strings"

	"istio.io/api/annotation"
)

// known is an annotation of Istio's table.
type known struct{ *annotation.Instance }

// istioAnnotation returns the annotation with a name, or nil. Istio's table has names without the ones
// that its own examples use for policies.
func istioAnnotation(name string) *known {
	for _, i := range annotation.AllResourceAnnotations() {
		if i.Name == name {
			return &known{i}
		}
	}
	switch name {
	case dryRunAnnotation:
		return &known{&annotation.Instance{Name: name, Resources: []annotation.ResourceTypes{annotation.AuthorizationPolicy}}}
	case injectLabel:
		return &known{&annotation.Instance{Name: name, Resources: []annotation.ResourceTypes{annotation.Pod}}}
	}
	return nil
}

// on reports whether the annotation has an effect on a kind.
func (k *known) on(kind string) bool {
	return slices.ContainsFunc(k.Resources, func(r annotation.ResourceTypes) bool {
		return r == annotation.Any || r.String() == kind
	})
}

// kinds names the kinds of the annotation.
func (k *known) kinds() string {
	var out []string
	for _, r := range k.Resources {
		out = append(out, r.String())
	}
	return strings.Join(out, " or ")
}
