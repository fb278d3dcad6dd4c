// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import "strings"

// intersect returns the more specific one of two host names of which one covers the
// other; false means that they have nothing in common. Empty covers everything; a
// wildcard covers names with at least one label more.
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

// hostnames returns where a route with some hosts takes requests of a listener.
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
