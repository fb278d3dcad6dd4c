module github.com/outrigger-mesh/outrigger/packaging/release

go 1.26.0

replace github.com/outrigger-mesh/outrigger/packaging/images => ../images

require (
	github.com/outrigger-mesh/outrigger/packaging/images v0.0.0-00010101000000-000000000000
	github.com/secure-systems-lab/go-securesystemslib v0.11.1
	github.com/spdx/tools-golang v0.5.7
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
