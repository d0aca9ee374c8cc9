package cli

import "github.com/spf13/cobra"

// Root has all commands, as Run makes them.
func Root(streams Streams) *cobra.Command { return (&app{Streams: streams}).root() }
