// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// scrapeVariable is the variable with what Prometheus would read of the application.
const scrapeVariable = "ISTIO_PROMETHEUS_ANNOTATIONS"

// scrape is its value.
type scrape struct {
	Scrape string `json:"scrape"`
	Path   string `json:"path"`
	Port   string `json:"port"`
}

// prometheusName returns the name of an annotation as Prometheus sees it: different annotations can
// have one name.
func prometheusName(annotation string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, annotation)
}

// mergeMetrics makes Prometheus read the metrics of the agent, Envoy and the application from the
// agent, which receives the annotations of the application.
func (j *job) mergeMetrics(pod *corev1.Pod) error {
	merge := j.mesh.GetEnablePrometheusMerge() == nil || j.mesh.GetEnablePrometheusMerge().GetValue()
	if b, err := strconv.ParseBool(pod.Annotations[nameMergeMetrics]); err == nil {
		merge = b
	}
	var found scrape
	var names []string
	for _, name := range slices.Sorted(maps.Keys(pod.Annotations)) {
		value := pod.Annotations[name]
		switch prometheusName(name) {
		case "prometheus_io_scrape":
			found.Scrape = value
		case "prometheus_io_path":
			found.Path = value
		case "prometheus_io_port":
			found.Port = value
		default:
			continue
		}
		names = append(names, name)
	}
	if b, err := strconv.ParseBool(found.Scrape); err == nil && !b {
		merge = false
	}
	port := strconv.Itoa(int(j.mesh.GetDefaultConfig().GetStatusPort()))
	if !merge || found.Port == port {
		return nil // off, or done by an earlier injection
	}
	if n, err := strconv.ParseUint(found.Port, 10, 16); found.Port != "" && (err != nil || n == 0) {
		return fmt.Errorf("annotation prometheus.io/port is %s; it must be a port, from 1 to 65535", clipped(found.Port))
	}
	if sidecar := findContainer(proxyName, pod); sidecar != nil && found != (scrape{}) {
		doc, err := json.Marshal(found)
		if err != nil {
			return fmt.Errorf("the annotations of Prometheus: %w", err)
		}
		e := environment(sidecar.Env)
		e.set(scrapeVariable, string(doc))
		sidecar.Env = e
	}
	for _, name := range names {
		delete(pod.Annotations, name)
	}
	maps.Copy(pod.Annotations, map[string]string{
		"prometheus.io/port": port, "prometheus.io/path": "/stats/prometheus", "prometheus.io/scrape": "true",
	})
	return nil
}
