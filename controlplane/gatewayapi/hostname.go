// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import "strings"

// intersect returns the more specific of two host names of which one matches the other. It returns
// false if they do not overlap. An empty name matches everything; a wildcard matches names with at
// least one more label.
func intersect(a, b string) (string, bool) {
	switch {
	case a == "" || a == "*":
		return b, true
	case b == "" || b == "*" || a == b:
		return a, true
	case covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	}
	return "", false
}

func covers(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	return ok && strings.HasSuffix(host, suffix) && host != suffix && host != wildcard
}

// hostnames returns the hosts for which a route receives requests of a listener.
func hostnames(listener string, route []string) []string {
	if len(route) == 0 {
		route = []string{""}
	}
	var out []string
	seen := map[string]bool{}
	for _, r := range route {
		host, ok := intersect(strings.ToLower(listener), strings.ToLower(r))
		if host == "" {
			host = "*"
		}
		if ok && !seen[host] {
			seen[host] = true
			out = append(out, host)
		}
	}
	return out
}
