// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

const (
	// maxHosts bounds the hosts of one ServiceEntry or VirtualService: proxies
	// get clusters or virtual hosts for each.
	maxHosts = 10_000
	// maxClusters bounds the hosts of a ServiceEntry times its ports, and
	// maxEndpoints those times its endpoints.
	maxClusters, maxEndpoints = 20_000, 500_000
	// maxRoutes bounds the hosts of a VirtualService times its routes: each host
	// has a copy of them.
	maxRoutes = 10_000
	// maxSubsets bounds the subsets of a DestinationRule.
	maxSubsets = 1000
	// maxExportTo bounds the namespaces that see an object.
	maxExportTo = 1000
)

// atMost checks the length of a list.
func (c *checker) atMost(n, most int, path string) {
	if n > most {
		c.errorf(path, "has %d entries: at most %d are allowed; write several objects", n, most)
	}
}

// product checks what the entries of several lists come to together.
func (c *checker) product(most int, path, what string, counts ...int) {
	n := 1
	for _, count := range counts {
		if n *= max(1, count); n > most {
			c.errorf(path, "make more than %d %s: write several objects", most, what)
			return
		}
	}
}
