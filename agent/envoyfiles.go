// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

const (
	// maxEnvoyFiles is how many files that Envoy reads itself are followed.
	maxEnvoyFiles = 100
	// envoyFilesAge is how long their list is used while the configuration does not change: listeners and
	// clusters may take a while until they are used.
	envoyFilesAge = time.Minute
)

// envoyFiles are the files with certificates and revocation lists that Envoy reads itself: of caCrl, and
// those of telemetry servers. Envoy has the content that a file had when it loaded it.
type envoyFiles struct {
	list  func(func(envoy.File)) error // calls a function with each file
	relay func() xdsproxy.Status

	listed, configured time.Time // when the list was read, and the last change before
	files              []envoy.File
	ends               map[loadedFile][]time.Time // of the content that Envoy has, where that is known
}

// loadedFile is a file as Envoy loaded it.
type loadedFile struct {
	path, part string
	at         time.Time
}

// credentials returns the parts that may expire. updated is when Envoy received its other secrets.
func (f *envoyFiles) credentials(now time.Time, updated map[string]time.Time) (out []credential, err error) {
	if changed := configured(f.relay()); now.Sub(f.listed) >= envoyFilesAge || !changed.Equal(f.configured) {
		f.files = nil
		if err := f.list(func(one envoy.File) {
			if len(f.files) < maxEnvoyFiles && !slices.Contains(systemFiles, one.Path) {
				f.files = append(f.files, one)
			}
		}); err != nil {
			return nil, err
		}
		f.listed, f.configured = now, changed
	}
	known := f.ends
	f.ends = make(map[loadedFile][]time.Time, len(f.files))
	for _, file := range f.files {
		key := loadedFile{file.Path, partOf[file.Field], file.Loaded}
		if at := updated[file.Roots]; at.After(key.at) {
			key.at = at
		}
		c := credential{part: key.part, what: clip.Text(key.part+" "+file.Path, maxName), by: clip.Text("the program that writes "+file.Path, maxName)}
		text, changed := contentOf(file.Path)
		ends, ok := known[key]
		if changed.After(key.at) { // Envoy has an earlier content
			c.unknown = "the file has changed since Envoy read it"
			c.by = "a change of its listener, cluster or roots, or a restart: Envoy then reads the changed file"
		} else if !ok {
			ends, ok = partEnds(key.part, text)
			if !ok {
				continue
			}
		}
		if ok {
			f.ends[key] = ends
		}
		c.ends = ends
		out = append(out, c)
	}
	return out, nil
}

var partOf = map[string]string{envoy.FileChain: partCertificate, envoy.FileRoots: partRoots, envoy.FileCRL: partRevocations}

// contentOf returns the content of a file, and when it was changed or put in its place. A file that cannot
// be read has been changed now.
func contentOf(path string) (text []byte, changed time.Time) {
	text, err := sds.ReadFile(path)
	if err != nil {
		return nil, time.Now()
	}
	info, err := os.Stat(path) // after it was read: what was replaced meanwhile is too new
	if err != nil {
		return nil, time.Now()
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return text, time.Unix(stat.Ctim.Unix())
	}
	return text, info.ModTime()
}

// configured returns when the listeners or clusters of Envoy changed last.
func configured(s xdsproxy.Status) (last time.Time) {
	for _, t := range s.Types {
		if (strings.HasSuffix(t.TypeURL, ".Listener") || strings.HasSuffix(t.TypeURL, ".Cluster")) && t.Accepted.After(last) {
			last = t.Accepted
		}
	}
	return last
}
