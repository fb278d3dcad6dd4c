// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// Pod annotations that change how Envoy reports its stats.
const (
	annotationBuckets  = "sidecar.istio.io/statsHistogramBuckets"
	annotationFlush    = "sidecar.istio.io/statsFlushInterval"
	annotationEviction = "sidecar.istio.io/statsEvictionInterval"
)

const (
	// Envoy refuses other flush intervals, and rounds down to milliseconds.
	minInterval = time.Millisecond
	maxFlush    = 5 * time.Minute // exclusive
	// defaultFlush is Envoy's own interval.
	defaultFlush = 5 * time.Second
	// defaultEviction ends series of peers that are gone, and others that nothing counted in, within
	// twice the time. Envoy requires a multiple of the flush interval.
	defaultEviction = 10 * time.Minute
)

// reporting is how Envoy reports its stats.
type reporting struct {
	// Intervals that annotations set; 0 means the default.
	flush, eviction time.Duration
	buckets         []histogram
}

// histogram sets the buckets of the histograms whose name has a prefix. It renders as Envoy's
// HistogramBucketSettings.
type histogram struct {
	Match   prefixMatch `json:"match"`
	Buckets []float64   `json:"buckets"`
}

type prefixMatch struct {
	Prefix string `json:"prefix"`
}

// StatsDoubts returns a sentence for each annotation about stats that is ignored because its value is
// invalid. Metrics are no reason not to start.
func StatsDoubts(m *node.Metadata) []string {
	_, doubts := reportingOf(m)
	return doubts
}

func reportingOf(m *node.Metadata) (r reporting, doubts []string) {
	ignore := func(annotation, format string, args ...any) {
		doubts = append(doubts, fmt.Sprintf("annotation %s is ignored: it is %q; ", annotation, m.Annotations[annotation])+fmt.Sprintf(format, args...))
	}
	flush := defaultFlush
	if value, ok := m.Annotations[annotationFlush]; ok {
		if d, err := time.ParseDuration(value); err != nil || d < minInterval || d >= maxFlush || d%minInterval != 0 {
			ignore(annotationFlush, "it must be a duration from %s to less than %s, in whole milliseconds, such as 10s", minInterval, maxFlush)
		} else {
			r.flush, flush = d, d
		}
	}
	if value, ok := m.Annotations[annotationEviction]; ok {
		if d, err := time.ParseDuration(value); err != nil || d < minInterval || d%flush != 0 {
			ignore(annotationEviction, "it must be a multiple of the flush interval, %s, such as %s", flush, 2*flush)
		} else {
			r.eviction = d
		}
	}
	if value, ok := m.Annotations[annotationBuckets]; ok {
		var err error
		if r.buckets, err = parseBuckets(value); err != nil {
			ignore(annotationBuckets, `it must be a JSON object of prefixes and their buckets, such as {"istio": [1, 10, 100]}: %s`, err)
		}
	}
	return r, doubts
}

// evictionInterval returns the interval that the annotation sets, or else the longest multiple of the
// flush interval up to the default.
func (r reporting) evictionInterval() time.Duration {
	flush := cmp.Or(r.flush, defaultFlush)
	return cmp.Or(r.eviction, defaultEviction/flush*flush)
}

// parseBuckets parses a JSON object of prefixes and their buckets.
func parseBuckets(text string) ([]histogram, error) {
	var byPrefix map[string][]float64
	if err := json.Unmarshal([]byte(text), &byPrefix); err != nil {
		return nil, err
	}
	var histograms []histogram
	for _, prefix := range slices.Sorted(maps.Keys(byPrefix)) {
		buckets := slices.Sorted(slices.Values(byPrefix[prefix]))
		switch {
		case prefix == "":
			return nil, errors.New("a prefix is empty")
		case len(buckets) == 0:
			return nil, fmt.Errorf("%q has no buckets", prefix)
		case buckets[0] <= 0:
			return nil, fmt.Errorf("%q has the bucket %v, which must be greater than 0", prefix, buckets[0])
		case len(slices.Compact(slices.Clone(buckets))) < len(buckets):
			return nil, fmt.Errorf("%q has a bucket twice", prefix)
		}
		histograms = append(histograms, histogram{prefixMatch{prefix}, buckets})
	}
	return histograms, nil
}

// seconds renders a duration as protobuf's JSON.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
