// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strings"
)

const gcpIPv6 = "http://[fd20:ce::254]"

// Keys of PLATFORM_METADATA that are set in several places.
const (
	gcpProject  = "gcp_project"
	gcpNumber   = "gcp_project_number"
	gcpCluster  = "gcp_gke_cluster_name"
	gcpLocation = "gcp_location"
)

// gcp returns the data of GCP_METADATA if it is set, and otherwise queries the metadata service.
func (c Config) gcp(ctx context.Context, static map[string]string) (result Result, err error) {
	if static != nil {
		result = Result{Name: GCP, Locality: gcpPlace(static[gcpLocation]), Metadata: static}
	} else {
		result, err = c.askGCP(ctx)
	}
	m := result.Metadata
	clusterURL := c.Env.GKEClusterURL
	if project, location, cluster := m[gcpProject], m[gcpLocation], m[gcpCluster]; clusterURL == "" && project != "" && location != "" && cluster != "" {
		clusterURL = fmt.Sprintf("https://container.googleapis.com/v1/projects/%s/locations/%s/clusters/%s", project, location, cluster)
	}
	more := metadata("gcp_gke_cluster_url", clusterURL, "gcp_quota_project", c.Env.GCPQuotaProject)
	if m == nil {
		result.Metadata = more
	} else {
		maps.Copy(m, more)
	}
	return result, err
}

// askGCP queries the metadata service for individual values, because the document with all values
// also contains keys.
func (c Config) askGCP(ctx context.Context) (Result, error) {
	result := Result{Name: GCP}
	fallback := linkLocal
	if c.IPv6 {
		fallback = gcpIPv6
	}
	s := newService(c.Endpoints.GCP, fallback)
	if host := c.Env.GCEMetadataHost; host != "" {
		s.base = "http://" + host
		if u, err := url.Parse(s.base); err != nil || u.Host != host {
			return result, fmt.Errorf("environment variable GCE_METADATA_HOST is %q; it must be host or host:port", host)
		}
	}
	s.header = http.Header{"Metadata-Flavor": {"Google"}}
	s.wanted = s.header
	const project, instance, attributes = "/computeMetadata/v1/project/", "/computeMetadata/v1/instance/", "/computeMetadata/v1/instance/attributes/"
	answers := s.values(ctx,
		instance+"zone", project+"project-id", project+"numeric-project-id", instance+"name", instance+"id",
		// Most machines lack some of these.
		attributes+"cluster-name", attributes+"cluster-location", attributes+"instance-template", attributes+"created-by")
	value := func(i int) string { return answers[i].value }
	zone := path.Base(value(0)) // projects/<number>/zones/<zone>
	if answers[0].err == nil && gcpPlace(zone).Zone == "" {
		answers[0].err = fmt.Errorf("%szone returned %.64q, which is not a zone", instance, value(0))
	}
	if answers[0].err != nil {
		zone = ""
	}
	location := value(6)
	if gcpPlace(location) == (Locality{}) {
		location = zone
	}
	if result.Locality = gcpPlace(zone); zone == "" {
		result.Locality = gcpPlace(location)
	}
	result.Metadata = metadata(gcpProject, value(1), gcpNumber, value(2), "gcp_gce_instance", value(3), "gcp_gce_instance_id", value(4),
		gcpCluster, value(5), gcpLocation, location, "gcp_gce_instance_template", value(7), "gcp_gce_instance_created_by", value(8))
	err := errors.Join(joined(answers[:5], nil), joined(answers[5:], func(err error) bool {
		return refused(err, http.StatusNotFound, http.StatusForbidden) // missing or not accessible
	}))
	return result, err
}

// gcpPlace returns the locality of a zone or a region. Regions end with a digit (us-central1),
// zones do not (us-central1-a).
func gcpPlace(location string) Locality {
	if !validLocality(location) {
		return Locality{}
	}
	if last := location[len(location)-1]; last >= '0' && last <= '9' {
		return Locality{Region: location}
	}
	dash := strings.LastIndexByte(location, '-')
	if dash <= 0 {
		return Locality{}
	}
	return Locality{Region: location[:dash], Zone: location}
}

// parseGCPMetadata parses GCP_METADATA. It returns nil if the text is empty or contains no values.
func parseGCPMetadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, "|")
	wrong := len(parts) != 4
	for i := range parts {
		var ok bool
		parts[i], ok = printable(parts[i])
		wrong = wrong || !ok
	}
	var m map[string]string
	if !wrong {
		m = metadata(gcpProject, parts[0], gcpNumber, parts[1], gcpCluster, parts[2], gcpLocation, parts[3])
	}
	if m == nil {
		return nil, fmt.Errorf("environment variable GCP_METADATA is %.128q; it must be project id|project number|cluster name|cluster location", text)
	}
	return m, nil
}
