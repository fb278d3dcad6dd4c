// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// manyAliases returns YAML whose aliases repeat 50 kB a thousand times.
func manyAliases() string {
	return "a: &a " + strings.Repeat("x", 50_000) + "\nb: [" + strings.Repeat("*a, ", 1000) + "]"
}

func TestFileAliases(t *testing.T) {
	t.Parallel()
	err := newInjector(t, "", "", "").File(strings.NewReader("kind: Pod\n---\n"+manyAliases()), io.Discard, "default", func(string) {})
	if err == nil || !strings.Contains(err.Error(), "the document at line 2: line 3: the aliases") {
		t.Errorf("got error %v, want one about the aliases", err)
	}
}

// TestAutoImagePolicy injects a proxy into a container with the image auto, for which the API
// server sets the pull policy of the tag latest. The policy of the template must apply, as for
// sidecars.
func TestAutoImagePolicy(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]corev1.PullPolicy{autoImage: corev1.PullNever, "example.test/own:1": corev1.PullAlways} {
		pod := podWith(map[string]string{"inject.istio.io/templates": "gateway"}, nil)
		pod.Spec.Containers = []corev1.Container{{Name: proxyName, Image: image, ImagePullPolicy: corev1.PullAlways}}
		result, err := newInjector(t, "", "{global: {imagePullPolicy: Never}}", "").Inject(Request{Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		if got := findContainer(proxyName, result.Pod).ImagePullPolicy; got != want {
			t.Errorf("pull policy of image %s: got %q, want %q", image, got, want)
		}
	}
}
