// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/packaging/images/debian"
)

// An spdxDocument is the part of an SPDX 2.3 document in JSON that is written.
type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	License       string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string          `json:"SPDXID"`
	Name      string          `json:"name"`
	Version   string          `json:"versionInfo"`
	Location  string          `json:"downloadLocation"`
	Analyzed  bool            `json:"filesAnalyzed"`
	Checksums []spdxChecksum  `json:"checksums,omitempty"`
	Refs      []spdxReference `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxReference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// partsList returns what an image contains, in SPDX: its programs with the Go
// modules in them, Envoy, and the Debian packages.
func partsList(o options, k kind, arch string, pinned []debian.Package) ([]byte, error) {
	document := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: o.prefix + "/" + k.name + ":" + o.version + " " + arch,
		Creation: spdxCreation{Created: o.created.Format(time.RFC3339), Creators: []string{"Tool: make images"}},
	}
	seen := map[string]bool{}
	add := func(owner string, p spdxPackage) string {
		p.ID, p.Location = "SPDXRef-"+clean(p.Name+"-"+p.Version), "NOASSERTION"
		if !seen[p.ID] {
			seen[p.ID] = true
			document.Packages = append(document.Packages, p)
		}
		relation := "CONTAINS"
		if owner == document.ID {
			relation = "DESCRIBES"
		}
		document.Relationships = append(document.Relationships, spdxRelationship{owner, relation, p.ID})
		return p.ID
	}
	image := add(document.ID, spdxPackage{Name: k.name, Version: o.version})
	for _, name := range k.programs {
		file := o.programPath(arch, name)
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		sum, err := checksum(file)
		if err != nil {
			return nil, err
		}
		program := add(image, spdxPackage{Name: name, Version: o.version, Checksums: sum})
		add(program, goModule("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			add(program, goModule(d.Path, d.Version))
		}
	}
	if k.envoy {
		sum, err := checksum(o.programPath(arch, "envoy"))
		if err != nil {
			return nil, err
		}
		add(image, spdxPackage{Name: "envoy", Version: o.envoyVersion, Checksums: sum, Refs: purl("pkg:github/envoyproxy/envoy@v" + o.envoyVersion)})
	}
	for _, p := range pinned {
		if p.Arch == arch && (k.envoy || p.Name != "libc6") {
			add(image, spdxPackage{
				Name: p.Name, Version: p.Version, Checksums: []spdxChecksum{{"SHA256", p.SHA256}},
				Refs: purl(fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.Name, strings.ReplaceAll(p.Version, "+", "%2B"), arch)),
			})
		}
	}
	text, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	document.Namespace = "urn:outrigger:" + k.name + ":" + hex.EncodeToString(sum[:])
	return json.MarshalIndent(document, "", " ")
}

// goModule returns the package of a Go module.
func goModule(path, version string) spdxPackage {
	return spdxPackage{Name: path, Version: version, Refs: purl("pkg:golang/" + path + "@" + version)}
}

// purl returns the reference of a package URL.
func purl(url string) []spdxReference {
	return []spdxReference{{"PACKAGE-MANAGER", "purl", url}}
}

// checksum returns the SHA-256 of a file.
func checksum(path string) ([]spdxChecksum, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	return []spdxChecksum{{"SHA256", hex.EncodeToString(sum[:])}}, nil
}

// clean returns a name with the characters that an identifier of SPDX may have.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, name)
}
