// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"os"
	"path/filepath"
)

// auditDir holds the policy and the log of kube-apiserver's audit.
var auditDir string

func auditLog(dir string) string { return filepath.Join(dir, "audit.log") }

// auditPolicy writes a policy that records the user and object of each request.
func auditPolicy() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "outrigger-chart-"); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
`), 0o600)
}
