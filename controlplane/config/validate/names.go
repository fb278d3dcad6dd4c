// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// The functions of this file give the end of a sentence that begins with the
// field: what the value is and what it has to be. Empty means fine.

var (
	dnsLabel   = regexp.MustCompile("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
	hostLabel  = regexp.MustCompile("^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
	labelValue = regexp.MustCompile("^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
	labelName  = regexp.MustCompile("^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
	headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")
	digits     = regexp.MustCompile("^[0-9]+$")
)

const (
	maxLabel = 63
	maxHost  = 255
	maxName  = 253
)

// DNSLabelFault checks a name such as a namespace.
func DNSLabelFault(s string) string {
	switch {
	case s == "":
		return "is empty: write a name"
	case len(s) > maxLabel:
		return "is " + field.Quote(s) + ": at most 63 characters are allowed"
	case !dnsLabel.MatchString(s):
		return "is " + field.Quote(s) + ": only lower-case letters, digits and \"-\" are allowed, with a letter or digit at both ends"
	}
	return ""
}

// SubdomainFault checks the name of an object.
func SubdomainFault(s string) string {
	switch {
	case s == "":
		return "is missing: write a name"
	case len(s) > maxName:
		return "is " + field.Quote(s) + ": at most 253 characters are allowed"
	}
	for part := range strings.SplitSeq(s, ".") {
		if !dnsLabel.MatchString(part) {
			return "is " + field.Quote(s) + ": only lower-case letters, digits, \"-\" and \".\" are allowed, with a letter or digit at both ends"
		}
	}
	return ""
}

// wildcard says which wildcards a host may have.
type wildcard int

const (
	// noWildcard wants a whole host.
	noWildcard wildcard = iota
	// wholeWildcard allows "*.example.com" and "*".
	wholeWildcard
	// anyWildcard allows "*-a.example.com" and "*a.example.com" too.
	anyWildcard
)

// hostFault checks a host: a short name or a domain name of DNS labels, at
// most 255 characters, perhaps with a wildcard in front.
func hostFault(s string, allowed wildcard) string {
	if s == "" {
		return "is empty: write a host such as catalog.default.svc.cluster.local"
	}
	name, wild := strings.CutPrefix(s, "*")
	switch {
	case wild && allowed == noWildcard:
		return "is " + field.Quote(s) + ": a wildcard is not allowed here; write the full host"
	case s == "*":
		return ""
	case wild && allowed == wholeWildcard && !strings.HasPrefix(name, "."):
		return "is " + field.Quote(s) + ": a wildcard must be the whole first part, as in *.example.com"
	case wild:
		name = strings.TrimLeft(name[:1], ".-") + name[1:]
	}
	if len(s) > maxHost {
		return "is " + field.Quote(s) + ": at most 255 characters are allowed"
	}
	parts := strings.Split(strings.TrimSuffix(name, "."), ".")
	for _, part := range parts {
		if len(part) > maxLabel || !hostLabel.MatchString(part) {
			return "is " + field.Quote(s) + ": it is not a host name" + hostHint(s)
		}
	}
	if last := parts[len(parts)-1]; digits.MatchString(last) {
		if isIP(s) {
			return "is " + field.Quote(s) + ": an IP address is not allowed here; write a host name"
		}
		return "is " + field.Quote(s) + ": it is neither an IP address nor a host name (a host name does not end in a number)"
	}
	return ""
}

// hostOrIPFault checks a host that may also be an IP address.
func hostOrIPFault(s string, allowed wildcard) string {
	if isIP(s) {
		return ""
	}
	return hostFault(s, allowed)
}

// hostHint names the usual slips.
func hostHint(s string) string {
	switch {
	case strings.Contains(s, "://"):
		return "; write it without the scheme"
	case strings.Contains(s, "/"):
		return "; write it without the path"
	case strings.Contains(s, ":"):
		return "; write it without the port"
	}
	return "; letters, digits, \"-\" and \".\" are allowed"
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// LabelFault checks one label of an object or workload.
func LabelFault(key, value string) string {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "", key
	}
	switch {
	case ok && SubdomainFault(prefix) != "", len(name) > maxLabel, !labelName.MatchString(name):
		return "has a key that is not a label key: write letters, digits, \"-\", \"_\" and \".\", optionally after a domain and \"/\""
	case len(value) > maxLabel:
		return "is " + field.Quote(value) + ": a label value has at most 63 characters"
	case !labelValue.MatchString(value):
		return "is " + field.Quote(value) + ": a label value has only letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends"
	}
	return ""
}

// labelNameFault checks a name that is a DNS label in which, as in Istio,
// large letters are allowed: of a port, a subset or a gateway.
func labelNameFault(s string) string {
	switch {
	case s == "":
		return "is empty: write a name"
	case len(s) > maxLabel:
		return "is " + field.Quote(s) + ": at most 63 characters are allowed"
	case !hostLabel.MatchString(s):
		return "is " + field.Quote(s) + ": only letters, digits and \"-\" are allowed, with a letter or digit at both ends"
	}
	return ""
}
