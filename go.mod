module github.com/firstpassage/fpa

go 1.26.0

require (
	github.com/dlclark/regexp2 v1.12.0
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/x448/float16 v0.8.4
	golang.org/x/sys v0.50.0
	golang.org/x/term v0.48.0
	golang.org/x/text v0.44.0
)

require (
	github.com/gomlx/gomlx v0.26.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
