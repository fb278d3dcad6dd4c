// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Validate checks an object and gives all that is wrong with it: each error
// names the field, its value and the cure. No error means that the object
// takes effect as it is written; a field that this version would ignore is
// an error too.
func Validate(c *model.Config) []error {
	spec, ok := findKind(c.Kind)
	if !ok {
		return []error{fmt.Errorf("kind %s is not served: this version serves %s", quote(string(c.Kind)), kindNames())}
	}
	if c.Spec == nil || c.Spec.ProtoReflect().Descriptor().FullName() != spec.message().ProtoReflect().Descriptor().FullName() {
		return []error{errors.New("spec is missing or of another kind")}
	}
	var errs []error
	if text := subdomainFault(c.Name); text != "" {
		errs = append(errs, fieldError{path: "metadata.name", text: text})
	}
	if text := dnsLabelFault(c.Namespace); text != "" {
		errs = append(errs, fieldError{path: "metadata.namespace", text: text})
	}
	for _, e := range check(c, spec) {
		errs = append(errs, e)
	}
	return errs
}

// fieldError is what is wrong with one field.
type fieldError struct {
	path string
	text string
}

func (e fieldError) Error() string { return e.path + " " + e.text }

// checker gathers what is wrong with one object.
type checker struct {
	errs []fieldError
}

// errorf adds a sentence; it continues behind the path of the field.
func (c *checker) errorf(path, format string, args ...any) {
	c.errs = append(c.errs, fieldError{path: path, text: fmt.Sprintf(format, args...)})
}

// fault adds the result of a function of names.go.
func (c *checker) fault(path, text string) {
	if text != "" {
		c.errs = append(c.errs, fieldError{path: path, text: text})
	}
}

// check runs the rules of the kind, after those that hold for every kind.
func check(cfg *model.Config, spec kindSpec) []fieldError {
	c := &checker{}
	c.supported(cfg.Spec.ProtoReflect(), "spec")
	spec.validate(c, cfg)
	return c.errs
}

// exportTo checks the namespaces that see an object.
func (c *checker) exportTo(values []string, path string) {
	seen := map[string]int{}
	for i, v := range values {
		at := index(path, i)
		if v != "*" && v != "." && v != "~" && dnsLabelFault(v) != "" {
			c.errorf(at, "is %s: write \"*\" (all namespaces), \".\" (its own), \"~\" (none) or the name of a namespace", quote(v))
		}
		if first, ok := seen[v]; ok {
			c.errorf(at, "is %s, as %s: remove one", quote(v), index(path, first))
		}
		seen[v] = i
		if len(values) > 1 && (v == "*" || v == "~") {
			c.errorf(at, "is %s, which stands alone: remove it or the others", quote(v))
		}
	}
}

// exportToAll refuses everything but "*".
func (c *checker) exportToAll(values []string, path string) {
	for i, v := range values {
		if v != "*" {
			c.errorf(index(path, i), "is %s: this version serves only \"*\" here", quote(v))
		}
	}
}

// labels checks a set of labels.
func (c *checker) labels(m map[string]string, path string) {
	for k, v := range sorted(m) {
		c.fault(path+"["+k+"]", labelFault(k, v))
	}
}

// selector checks the labels of a workload selector.
func (c *checker) selector(m map[string]string, path string) {
	for k, v := range sorted(m) {
		at := path + "[" + k + "]"
		if strings.Contains(k, "*") || strings.Contains(v, "*") {
			c.errorf(at, "is %s: a selector has no wildcards; write the exact value", quote(v))
			continue
		}
		c.fault(at, labelFault(k, v))
	}
}

const maxPort = 65535

// port checks a port number.
func (c *checker) port(n uint32, path string) {
	switch {
	case n == 0:
		c.errorf(path, "is 0 or missing: write a port between 1 and 65535")
	case n > maxPort:
		c.errorf(path, "is %d: a port is between 1 and 65535", n)
	}
}

// optionalPort checks a port number that may be left out.
func (c *checker) optionalPort(n uint32, path string) {
	if n != 0 {
		c.port(n, path)
	}
}

// duration checks a time span: at least 1 ms, whole milliseconds.
func (c *checker) duration(d *durationpb.Duration, path string) {
	if d == nil {
		return
	}
	v := d.AsDuration()
	switch {
	case v < time.Millisecond:
		c.errorf(path, "is %s: it has to be 1ms or more", v)
	case v%time.Millisecond != 0:
		c.errorf(path, "is %s: it has to be whole milliseconds", v)
	}
}

// durationOrZero is duration for fields in which 0s means "off".
func (c *checker) durationOrZero(d *durationpb.Duration, path string) {
	if d.AsDuration() != 0 {
		c.duration(d, path)
	}
}

// seconds checks a time span that Envoy takes in seconds.
func (c *checker) seconds(d *durationpb.Duration, path string) {
	if d != nil && (d.AsDuration() < time.Second || d.AsDuration()%time.Second != 0) {
		c.errorf(path, "is %s: it has to be whole seconds, 1s or more", d.AsDuration())
	}
}

// notNegative checks a count for which 0 means the default.
func (c *checker) notNegative(n int32, path string) {
	if n < 0 {
		c.errorf(path, "is %d: it has to be 1 or more", n)
	}
}

const maxRegex = 1024

// stringMatch checks a match that has to say something.
func (c *checker) stringMatch(m *networkingv1alpha3.StringMatch, path string) {
	switch v := m.GetMatchType().(type) {
	case nil:
		c.errorf(path, "is empty: write exact, prefix or regex")
	case *networkingv1alpha3.StringMatch_Prefix:
		if v.Prefix == "" {
			c.errorf(path+".prefix", "is empty: write a prefix, or remove the match")
		}
	case *networkingv1alpha3.StringMatch_Regex:
		c.regex(v.Regex, path+".regex")
	}
}

func (c *checker) regex(s, path string) {
	switch {
	case s == "":
		c.errorf(path, "is empty: write a regular expression, or remove the match")
	case len(s) > maxRegex:
		c.errorf(path, "has %d characters: at most %d are allowed", len(s), maxRegex)
	default:
		if err := model.CheckRegex(s); err != nil {
			c.errorf(path, "is %s: it is no RE2 regular expression that Envoy takes: %s", quote(s),
				strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		}
	}
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
