// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"strings"
	"testing"
)

func TestGCPPlace(t *testing.T) {
	t.Parallel()
	for location, want := range map[string]Locality{
		"":                   {},
		"us-central1-a":      {Region: "us-central1", Zone: "us-central1-a"},
		"us-central1":        {Region: "us-central1"},
		"us-central1-ai1a":   {Region: "us-central1", Zone: "us-central1-ai1a"},
		"u-germany-north1-b": {Region: "u-germany-north1", Zone: "u-germany-north1-b"},
		"global":             {},
		"-a":                 {},
		"a/b-c":              {},
	} {
		if got := gcpPlace(location); got != want {
			t.Errorf("gcpPlace(%q) = %+v, want %+v", location, got, want)
		}
	}
}

func TestAWSRegion(t *testing.T) {
	t.Parallel()
	for zone, want := range map[string]string{
		"us-east-1a": "us-east-1", "us-gov-west-1b": "us-gov-west-1", "us-west-2-lax-1a": "us-west-2", "us-east-1-wl1-bos-wlz-1": "us-east-1",
		"ap-southeast-10c": "ap-southeast-10", "nova": "", "": "",
	} {
		if got := awsRegion.FindString(zone); got != want {
			t.Errorf("region of %q is %q, want %q", zone, got, want)
		}
	}
}

// check checks the invariants of every result.
func check(t *testing.T, prefix string, got Result) {
	t.Helper()
	for key, value := range got.Metadata {
		name, ok := strings.CutPrefix(key, prefix)
		if clean, fine := printable(value); !ok || !fine || clean != value || len(name) > maxValue {
			t.Errorf("%q is %q", key, value)
		}
	}
	for _, part := range []string{got.Locality.Region, got.Locality.Zone} {
		if part != "" && !validLocality(part) {
			t.Errorf("locality %+v", got.Locality)
		}
	}
	if got.Locality.Region == "" && got.Locality.Zone != "" {
		t.Errorf("a zone without a region: %+v", got.Locality)
	}
}

func FuzzGCPMetadata(f *testing.F) {
	for _, text := range []string{"", "p|1|c|us-central1-a", "p|1|c|europe-west1", "|||", "a|b", "p|1|c|\x00", " p | | |-"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		static, err := parseGCPMetadata(text)
		if err != nil && (static != nil || !strings.Contains(err.Error(), "GCP_METADATA is ")) || err == nil && static == nil && text != "" {
			t.Errorf("parseGCPMetadata(%q) = %q, %v", text, static, err)
		}
		if static == nil {
			return
		}
		got, err := Config{}.gcp(t.Context(), static) // with static data, no request is sent
		if err != nil || got.Name != GCP || len(got.Metadata) > 5 {
			t.Errorf("%+v, %v", got, err)
		}
		delete(got.Metadata, "gcp_gke_cluster_url") // longer than its parts
		check(t, "gcp_", got)
	})
}

func FuzzAzure(f *testing.F) {
	for _, doc := range []string{
		"", "{}", "null", "[]", azureDoc, `{"name":7,"location":"w"}`, `{"tags":"a:b;c;;:d"}`, `{"tagsList":[{"name":"","value":"x"},null,{"name":"a\nb"}]}`,
		`{"location":"a/b","zone":"1"}`, `{"tagsList":{}}`, "\xff",
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := parseAzure(doc)
		if got.Name != Azure || err == nil && len(got.Metadata) == 0 {
			t.Errorf("parseAzure(%q) = %+v, %v", doc, got, err)
		}
		check(t, azurePrefix, got)
	})
}
