// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Object checks an object and returns all that is wrong with it: each error
// names the field, its value and the cure. An object with errors must not be
// stored. Warnings are about objects that are valid and perhaps not what their
// author meant, such as a field that has no effect in this version.
func Object(c *model.Config) (errs, warnings []field.Error) {
	sch, ok := schema.Of(c.Kind)
	if !ok {
		return []field.Error{{Path: "kind", Text: "is " + field.Quote(string(c.Kind)) + ": write one of " + schema.Names()}}, nil
	}
	if !sch.HasType(c.Spec) {
		return []field.Error{{Path: "spec", Text: "is missing, or is that of another kind"}}, nil
	}
	k := &checker{}
	k.fault("metadata.name", SubdomainFault(c.Name))
	switch {
	case !sch.Cluster:
		k.fault("metadata.namespace", DNSLabelFault(c.Namespace))
	case c.Namespace != "":
		k.errorf("metadata.namespace", "is %s: a %s has no namespace; remove it", field.Quote(c.Namespace), sch.Name)
	}
	k.labels(c.Labels, "metadata.labels")
	k.check(c, sch)
	return k.listed()
}

// Result is what is wrong with a spec.
type Result struct {
	Errors, Warnings []field.Error
	// Unlisted and UnlistedWarnings count further ones.
	Unlisted, UnlistedWarnings int
}

// Spec checks the spec of an object like [Object], but not its name,
// namespace and labels.
func Spec(c *model.Config, sch schema.Schema) Result {
	k := &checker{}
	k.check(c, sch)
	return Result{k.errs, k.warnings, k.unlisted, k.unlistedWarnings}
}

// checker gathers what is wrong with one object.
type checker struct {
	errs, warnings []field.Error
	// unlisted and unlistedWarnings count what came after MaxListed of each.
	unlisted, unlistedWarnings int
}

// listed returns the errors and the warnings, with an entry about those that
// are not listed.
func (c *checker) listed() (errs, warnings []field.Error) {
	errs, warnings = c.errs, c.warnings
	if c.unlisted > 0 {
		errs = append(errs, field.Error{Text: field.Unlisted(c.unlisted, "error")})
	}
	if c.unlistedWarnings > 0 {
		warnings = append(warnings, field.Error{Text: field.Unlisted(c.unlistedWarnings, "warning")})
	}
	return errs, warnings
}

// full reports whether another error would not be listed. Rules ask it before
// they look for a cure at length.
func (c *checker) full() bool { return len(c.errs) >= field.MaxListed }

// errorf adds a sentence; it continues behind the path of the field.
func (c *checker) errorf(path, format string, args ...any) {
	if c.full() {
		c.unlisted++
		return
	}
	c.errs = append(c.errs, field.Error{Path: path, Text: fmt.Sprintf(format, args...)})
}

// warnf adds a sentence about a field that is allowed and perhaps not meant.
func (c *checker) warnf(path, format string, args ...any) {
	if len(c.warnings) >= field.MaxListed {
		c.unlistedWarnings++
		return
	}
	c.warnings = append(c.warnings, field.Error{Path: path, Text: fmt.Sprintf(format, args...)})
}

// fault adds the result of a function of names.go.
func (c *checker) fault(path, text string) {
	if text != "" {
		c.errorf(path, "%s", text)
	}
}

// dryRunAnnotation asks that a policy is only counted, not enforced.
const dryRunAnnotation = "istio.io/dry-run"

// check runs the rules of the kind, and those that hold for every spec.
func (c *checker) check(cfg *model.Config, sch schema.Schema) {
	if v, ok := cfg.Annotations[dryRunAnnotation]; ok && cfg.Kind != model.AuthorizationPolicy {
		c.errorf("metadata.annotations["+dryRunAnnotation+"]", "is %s: only an AuthorizationPolicy can be tried without effect; remove it", field.Quote(v))
	}
	kindRules[cfg.Kind](c, cfg)
	c.withoutEffect(cfg.Spec, sch)
}

// exportTo checks the namespaces that see an object of a namespace.
func (c *checker) exportTo(namespace string, values []string, path string) {
	c.atMost(len(values), maxExportTo, path)
	seen := map[string]int{}
	for i, v := range values {
		at := field.Index(path, i)
		name := v
		if v == "." && namespace != "" {
			name = namespace
		}
		switch {
		case v == "*" || v == "." || v == "~":
		case labelNameFault(v) != "":
			c.errorf(at, "is %s: write \"*\" (all namespaces), \".\" (its own), \"~\" (none) or the name of a namespace", field.Quote(v))
		case DNSLabelFault(v) != "":
			c.warnf(at, "is %s, and no namespace has capital letters: write %s", field.Quote(v), field.Quote(strings.ToLower(v)))
		}
		if first, ok := seen[name]; ok {
			c.errorf(at, "is %s, which %s already includes: remove one", field.Quote(v), field.Index(path, first))
		} else {
			seen[name] = i
		}
		if len(values) > 1 && (v == "*" || v == "~") {
			c.errorf(at, "is %s, which must be the only entry: remove it or the others", field.Quote(v))
		}
	}
}

// notToNone refuses "~", which only services have.
func (c *checker) notToNone(values []string, path string) {
	for i, v := range values {
		if v == "~" && len(values) == 1 {
			c.errorf(field.Index(path, i), "is \"~\", so nobody would use the object: write \".\" (its own namespace), or delete the object")
		}
	}
}

// labels checks a set of labels.
func (c *checker) labels(m map[string]string, path string) {
	for k, v := range field.Sorted(m) {
		c.fault(field.Key(path, k), LabelFault(k, v))
	}
}

// longLabels is labels for a set that no object of Kubernetes has to have: a value may be longer
// than Kubernetes allows.
func (c *checker) longLabels(m map[string]string, path string) {
	for k, v := range field.Sorted(m) {
		if len(v) > maxLabel && labelValue.MatchString(v) && LabelFault(k, "") == "" {
			c.warnf(field.Key(path, k), "has %d characters, and no Pod has a label with more than %d: shorten it", len(v), maxLabel)
			continue
		}
		c.fault(field.Key(path, k), LabelFault(k, v))
	}
}

// selector checks the labels of a workload selector, and warns of one that is
// there and names none: it selects all workloads.
func (c *checker) selector(present bool, m map[string]string, path string) {
	if present && len(m) == 0 {
		c.warnf(path, "is empty, so the object is for every workload of the namespace: write labels, or remove the selector")
	}
	for k, v := range field.Sorted(m) {
		at := field.Key(path, k)
		switch {
		case k == "":
			c.errorf(path, "has an empty key: write the name of a label")
		case strings.Contains(k, "*") || strings.Contains(v, "*"):
			c.errorf(at, "is %s: a selector has no wildcards; write the exact key and value", field.Quote(v))
		case len(v) > maxLabel:
			c.errorf(at, "has %d characters: a label value has at most %d", len(v), maxLabel)
		case LabelFault(k, v) != "":
			c.warnf(at, "%s; as written, it selects no workload", LabelFault(k, v))
		}
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
	case v == 0:
		c.errorf(path, "is 0s: it must be 1ms or more; leave it out for the default")
	case v < time.Millisecond:
		c.errorf(path, "is %s: it must be 1ms or more", v)
	case v%time.Millisecond != 0:
		c.errorf(path, "is %s: it must be whole milliseconds", v)
	}
}

// wholeSeconds is duration for spans that are sent in seconds.
func (c *checker) wholeSeconds(d *durationpb.Duration, path string) {
	if v := d.AsDuration(); v%time.Second != 0 {
		c.errorf(path, "is %s: it must be whole seconds", v)
		return
	}
	c.duration(d, path)
}

// notNegative checks a count for which 0 means the default.
func (c *checker) notNegative(n int32, path string) {
	if n < 0 {
		c.errorf(path, "is %d: it must be 0 (the default) or more", n)
	}
}

const maxRegex = 1024

// stringMatch checks the match of a value that is always there.
func (c *checker) stringMatch(m *networkingv1alpha3.StringMatch, path string) {
	switch v := m.GetMatchType().(type) {
	case nil:
		c.warnf(path, "is empty and matches everything: write exact, prefix or regex, or remove it")
	case *networkingv1alpha3.StringMatch_Prefix:
		if v.Prefix == "" {
			c.errorf(path+".prefix", "is empty: write a prefix, or remove the match")
		}
	case *networkingv1alpha3.StringMatch_Regex:
		c.regex(v.Regex, path+".regex")
	}
}

// presentOrMatch checks a match that, when empty, asks only that something
// is there.
func (c *checker) presentOrMatch(m *networkingv1alpha3.StringMatch, path string) {
	switch v := m.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Prefix:
		if v.Prefix == "" {
			c.errorf(path+".prefix", "is empty: write a prefix, or {} if any value matches")
		}
	case *networkingv1alpha3.StringMatch_Regex:
		c.regex(v.Regex, path+".regex")
	}
}

// percent checks a share that Envoy takes in millionths.
func (c *checker) percent(p *networkingv1alpha3.Percent, path string) {
	if v := p.GetValue(); !(v == 0 || v >= 0.0001 && v <= 100) {
		c.errorf(path, "is %v: a percentage is 0, or between 0.0001 and 100", v)
	}
}

// wholePercent checks a share of whole hundredths.
func (c *checker) wholePercent(v int32, path string) {
	if v < 0 || v > 100 {
		c.errorf(path, "is %d: a percentage is between 0 and 100", v)
	}
}

// ipRange checks an IP address or a range of them.
func (c *checker) ipRange(s, path string) {
	if _, err := netip.ParsePrefix(s); err != nil && !isIP(s) {
		c.errorf(path, "is %s: it must be an IP address or a range such as 10.0.0.0/24", field.Quote(s))
	}
}

// unixSocketFault checks what stands behind unix://: an absolute path of a file, or
// an abstract name behind @.
func unixSocketFault(s string) string {
	name := strings.TrimPrefix(s, unixScheme)
	if strings.HasPrefix(name, "@") || strings.HasPrefix(name, "/") && !strings.HasSuffix(name, "/") {
		return ""
	}
	return "is " + field.Quote(s) + ": write unix:// and the absolute path of the socket, as in unix:///run/app.sock"
}

const unixScheme = "unix://"

func (c *checker) regex(s, path string) {
	switch {
	case s == "":
		c.errorf(path, "is empty: write a regular expression, or remove the match")
	case len(s) > maxRegex:
		c.errorf(path, "has %d characters: at most %d are allowed", len(s), maxRegex)
	default:
		if err := model.CheckRegex(s); err != nil {
			c.errorf(path, "is %s: it is not an RE2 regular expression that Envoy accepts: %s", field.Quote(s),
				strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		}
	}
}
