// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPullSecret(t *testing.T) {
	t.Parallel()
	const config = `{"auths":{"r.example":{"auth":"c2VjcmV0"}}}`
	tests := []struct {
		name string
		data map[string][]byte
		want string // the config, or part of the error
	}{
		{"a docker config", map[string][]byte{".dockerconfigjson": []byte(config)}, config},
		{"no registries", map[string][]byte{".dockerconfigjson": []byte(`{"auths":{}}`)}, `{"auths":{}}`},
		{"no JSON", map[string][]byte{".dockerconfigjson": []byte(config[1:])}, ".dockerconfigjson is not the JSON of a docker config"},
		{"not an object", map[string][]byte{".dockerconfigjson": []byte(`["c2VjcmV0"]`)}, ".dockerconfigjson is not the JSON of a docker config"},
		{"no auths", map[string][]byte{".dockerconfigjson": []byte(`{"c2VjcmV0":1}`)}, ".dockerconfigjson has no auths"},
		{"null", map[string][]byte{".dockerconfigjson": []byte(`null`)}, ".dockerconfigjson has no auths"},
		{"roots only", map[string][]byte{"ca.crt": []byte("c2VjcmV0")}, "ca.crt"},
		{"nothing of ours", map[string][]byte{"password": []byte("c2VjcmV0")}, "there is no Secret shop/registry"},
	}
	for _, tc := range tests {
		table, err := NewTable(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		table.Set("shop", "registry", tc.data)
		got, err := DockerOf(table, Reference{Scheme: SchemeKubernetes, Namespace: "shop", Name: "registry"})
		switch {
		case err != nil && (!strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "c2VjcmV0")):
			t.Errorf("%s: got error %v, want one with %q without the password", tc.name, err, tc.want)
		case err == nil && string(got.JSON) != tc.want:
			t.Errorf("%s: got %d bytes, want %q", tc.name, len(got.JSON), tc.want)
		}
	}
}

// TestPullSecretWithOtherData checks that a Secret may contain both a certificate and a docker
// config, and that one with only a docker config is not a certificate.
func TestPullSecretWithOtherData(t *testing.T) {
	t.Parallel()
	c, err := Parse("shop", "registry", map[string][]byte{".dockerconfigjson": []byte(`{"auths":{}}`)})
	if err != nil || c.Pair != nil || c.Roots != nil || c.Docker == nil {
		t.Fatalf("got %v, error %v; want only the docker config", c, err)
	}
	table, err := NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	table.OnChange(func(string, string) { changes++ })
	for _, config := range []string{`{"auths":{}}`, `{"auths":{}}`, `{"auths":{"a":{}}}`} {
		table.Set("shop", "registry", map[string][]byte{".dockerconfigjson": []byte(config)})
	}
	if changes != 2 {
		t.Errorf("%d changes were reported, want 2", changes)
	}
	if _, err := KeyPairOf(table, Reference{Namespace: "shop", Name: "registry"}); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("KeyPairOf a docker config: got error %v, want one other than ErrNotFound", err)
	}
}

func TestPullSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	docker := &Docker{JSON: PullSecret(`{"auths":{"r.example":{"auth":"c2VjcmV0"}}}`)}
	text, err := json.Marshal(docker)
	if err != nil {
		t.Fatal(err)
	}
	shown := string(text) + fmt.Sprintf("%v %+v %#v %s %d %x %v %x", docker, *docker, docker, docker.JSON, docker.JSON, docker.JSON, docker.JSON.LogValue(), *docker)
	if strings.Contains(shown, "c2VjcmV0") || strings.Contains(shown, "99 50") || strings.Contains(shown, "6332566a") {
		t.Errorf("the formatted credential contains the password: %s", shown)
	}
}
