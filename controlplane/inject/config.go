// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// The policies: what happens to pods that say nothing about injection.
const (
	PolicyEnabled  = "enabled"
	PolicyDisabled = "disabled"
)

// Config is the configuration of an injector. The zero value enables injection with the built-in
// templates. It is immutable.
type Config struct {
	Policy           string              `json:"policy"`
	DefaultTemplates []string            `json:"defaultTemplates"`
	Templates        map[string]string   `json:"templates"`
	Aliases          map[string][]string `json:"aliases"`
	// NeverInjectSelector and AlwaysInjectSelector decide about pods that say nothing; the former
	// has precedence.
	NeverInjectSelector  []metav1.LabelSelector `json:"neverInjectSelector"`
	AlwaysInjectSelector []metav1.LabelSelector `json:"alwaysInjectSelector"`
	InjectedAnnotations  map[string]string      `json:"injectedAnnotations"`

	never, always []labels.Selector
}

// ParseConfig parses a configuration as YAML. Unknown fields are ignored. An empty document results
// in the defaults.
func ParseConfig(doc []byte) (*Config, error) {
	c := &Config{}
	if err := aliases.Check(doc); err != nil {
		return nil, fmt.Errorf("the configuration of the injector: %w", err)
	}
	if err := yaml.Unmarshal(doc, c); err != nil {
		return nil, fmt.Errorf("the configuration of the injector: %w", err)
	}
	switch c.Policy {
	case "":
		c.Policy = PolicyEnabled
	case PolicyEnabled, PolicyDisabled:
	default:
		return nil, fmt.Errorf("policy is %s; it must be %s or %s", clipped(c.Policy), PolicyEnabled, PolicyDisabled)
	}
	if len(c.DefaultTemplates) == 0 {
		c.DefaultTemplates = []string{templateSidecar}
	}
	var err error
	if c.never, err = selectors("neverInjectSelector", c.NeverInjectSelector); err != nil {
		return nil, err
	}
	if c.always, err = selectors("alwaysInjectSelector", c.AlwaysInjectSelector); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		if err := checkTemplate(name, c.Templates[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range c.templates(c.DefaultTemplates) {
		if !c.hasTemplate(name) {
			return nil, fmt.Errorf("defaultTemplates has %s: %s", clipped(name), c.known())
		}
	}
	return c, nil
}

// selectors returns the selectors of a field. Empty ones select nothing.
func selectors(field string, in []metav1.LabelSelector) ([]labels.Selector, error) {
	var out []labels.Selector
	for i := range in {
		s, err := metav1.LabelSelectorAsSelector(&in[i])
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		if !s.Empty() {
			out = append(out, s)
		}
	}
	return out, nil
}

// templates returns the templates for a list of names, some of which may be aliases.
func (c *Config) templates(names []string) []string {
	var out []string
	for _, name := range names {
		if several, ok := c.Aliases[name]; ok {
			out = append(out, several...)
		} else {
			out = append(out, name)
		}
	}
	return out
}

// hasTemplate reports whether a template exists.
func (c *Config) hasTemplate(name string) bool {
	_, own := c.Templates[name]
	_, builtin := builtins()[name]
	return own || builtin
}

// known returns a sentence with the names that a user can write.
func (c *Config) known() string {
	names := map[string]bool{}
	for name := range c.Templates {
		names[name] = true
	}
	for name := range c.Aliases {
		names[name] = true
	}
	for name := range builtins() {
		names[name] = true
	}
	return "the template does not exist; the templates are " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// clipped returns a text of a user as an error may contain it: quoted and bounded.
func clipped(s string) string {
	const longest = 100 // bytes
	return fmt.Sprintf("%q", clip.Text(s, longest))
}
