// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

var (
	// described is a version as git describe prints it: v1.2.3-rc.1-4-gabcdef0-dirty.
	described = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)+)((?:-[A-Za-z][0-9A-Za-z.]*)?)((?:-[0-9]+-g[0-9a-f]+)?(?:-dirty)?)$`)
	invalid   = regexp.MustCompile(`[^0-9A-Za-z.]+`)
)

// packageVersion returns a version that dpkg and rpm accept and order: a release candidate before
// its release, later commits after it. A version without a tag is ordered by its time.
func packageVersion(version string, created time.Time) string {
	if m := described.FindStringSubmatch(version); m != nil {
		out := m[1]
		if candidate := strings.TrimPrefix(m[2], "-"); candidate != "" && candidate != "dirty" {
			out += "~" + candidate
		}
		if later := strings.Trim(m[3], "-"); later != "" {
			out += "+" + strings.ReplaceAll(later, "-", ".")
		} else if m[2] == "-dirty" {
			out += "+dirty"
		}
		return out
	}
	return strings.TrimRight(fmt.Sprintf("0+%s.%s", created.Format("20060102150405"), invalid.ReplaceAllString(version, ".")), ".")
}
